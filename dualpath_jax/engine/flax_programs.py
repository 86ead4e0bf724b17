"""Programs over the engines of a group: one function of one engine's arrays, run by all of them at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.parameters import ENGINE_AXIS, Structure, flatten, partition_specs

Body = Callable[[Decoder, Any, Any], Any]
LayerStep = Callable[[DecoderLayer, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


@final
@dataclass(frozen=True)
class ShardedModel:
    """A model on the engines of one mesh, taken apart once."""

    mesh: Mesh
    structure: Structure
    leaves: tuple[jax.Array, ...]
    specs: tuple[PartitionSpec, ...]

    @classmethod
    def of(cls, model: Decoder, mesh: Mesh) -> "ShardedModel":
        return cls(mesh, *flatten(model), partition_specs(model))

    @property
    def engines(self) -> int:
        return self.mesh.shape[ENGINE_AXIS]

    @cached_property
    def device_sharding(self) -> NamedSharding:
        """The leading axis over the engines, in device memory."""
        return NamedSharding(self.mesh, PartitionSpec(ENGINE_AXIS), memory_kind="device")

    @cached_property
    def host_sharding(self) -> NamedSharding:
        """The leading axis over the engines, in memory that their devices read directly."""
        return NamedSharding(self.mesh, PartitionSpec(ENGINE_AXIS), memory_kind="pinned_host")

    @cached_property
    def local(self) -> range:
        """The engines whose devices are this process's."""
        own = [e for e, device in enumerate(self.mesh.devices.flat) if device.process_index == jax.process_index()]
        return range(own[0], own[-1] + 1)

    def to_device(self, arrays: Any) -> Any:
        """NumPy arrays `[E, ...]` to device memory, of which this process's rows are read.

        May alias them: they must not change while a program runs.
        """
        return _place(arrays, self.device_sharding)

    def to_host_memory(self, arrays: Any) -> Any:
        """The same to host memory that the devices read directly."""
        return _place(arrays, self.host_sharding)

    def fetch(self, arrays: Any) -> Any:
        """This process's rows of results, NumPy `[local engines, ...]`; waits for them."""
        return jax.tree.map(_local_rows, arrays)

    def program(self, body: Body, *, donate_state: bool = False) -> "Program":
        """`run(state, inputs)`: `body(model, state, inputs)` on every engine, jitted.

        Arrays of `state`, `inputs` and the result have a leading engine axis, which the body does not see.
        """

        def on_engine(leaves: tuple[jax.Array, ...], state: Any, inputs: Any) -> Any:
            own_state, own_inputs = jax.tree.map(lambda array: jnp.squeeze(array, 0), (state, inputs))
            result = body(self.structure.build(leaves), own_state, own_inputs)
            return jax.tree.map(lambda array: array[None], result)

        axis = PartitionSpec(ENGINE_AXIS)
        # Trip counts of the attention loops differ between engines, so nothing is to be proved about replication.
        sharded = jax.shard_map(
            on_engine, mesh=self.mesh, in_specs=(self.specs, axis, axis), out_specs=axis, check_vma=False
        )
        jitted = jax.jit(sharded, donate_argnums=(1,) if donate_state else ())
        return Program(jitted, self.leaves)


def _place(arrays: Any, sharding: NamedSharding) -> Any:
    # Faster than `device_put`, and on several processes that would compare all their rows.
    return jax.tree.map(
        lambda array: jax.make_array_from_callback(array.shape, sharding, lambda index: array[index]), arrays
    )


def _local_rows(array: jax.Array) -> np.ndarray:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    rows = [np.asarray(shard.data) for shard in shards]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


@final
@dataclass(frozen=True)
class Program:
    """A jitted function of the model's leaves, donated or kept state, and inputs."""

    jitted: Any
    leaves: tuple[jax.Array, ...]

    def __call__(self, state: Any, inputs: Any) -> Any:
        return self.jitted(self.leaves, state, inputs)


def layers_per_stack(spec: ModelSpec, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """For each stack that the model has, (first layer within it, layers) of the group `[first, last)`."""
    dense, layers = spec.first_k_dense_replace, spec.num_hidden_layers
    if not 0 <= first < last <= layers:
        raise ValueError(f"layer group [{first}, {last}): expected a range within [0, {layers}) that is not empty")
    spans = []
    for start, end in ((0, dense), (dense, layers)):
        if start < end:
            begin, stop = max(first, start), min(last, end)
            spans.append((max(begin - start, 0), max(stop - begin, 0)))
    return tuple(spans)


def scan_layers(
    model: Decoder, x_TD: jax.Array, *, firsts: jax.Array, counts: Sequence[int], step: LayerStep
) -> tuple[jax.Array, jax.Array]:
    """Run `counts[s]` layers of each stack s from its layer `firsts[s]` on, and stack what the steps return.

    `step(layer, x, index)` gets the layer's place among those that are run. Only the layer at work is taken out of
    the stacked parameters.
    """
    outputs, done = [], 0
    for place, (stack, count) in enumerate(zip(model.stacks, counts, strict=True)):
        if count == 0:
            continue
        structure, leaves = flatten(stack)

        def run(
            x_TD: jax.Array,
            index: jax.Array,
            *,
            of: Structure = structure,
            leaves: tuple[jax.Array, ...] = leaves,
            first: jax.Array = firsts[place],
            before: int = done,
        ) -> tuple[jax.Array, jax.Array]:
            layer = of.build([lax.dynamic_index_in_dim(leaf, first + index, keepdims=False) for leaf in leaves])
            return step(layer, x_TD, before + index)

        x_TD, output = lax.scan(run, x_TD, jnp.arange(count, dtype=jnp.int32))
        outputs.append(output)
        done += count
    return x_TD, jnp.concatenate(outputs)
