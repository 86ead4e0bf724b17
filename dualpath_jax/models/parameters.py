"""Parameters declared once: shape, dtype, logical axes and initializer stand together.

A module that is constructed holds declarations (`jax.ShapeDtypeStruct` inside `nnx.Param`), no numbers. Values from a
seed, from a checkpoint, and their shardings all follow from the declarations.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ENGINE_AXIS = "engine"
"""The mesh axis of an engine group."""

SHARDING: Mapping[str, str] = {"experts": ENGINE_AXIS}
"""Logical axis → mesh axis. What is not named here is replicated."""

ModuleT = TypeVar("ModuleT", bound=nnx.Module)


@dataclass(frozen=True)
class Declare:
    """Declares parameters of one dtype; with `layers`, each gets a leading axis of that many layers."""

    dtype: jnp.dtype
    layers: int | None = None

    def __call__(
        self, sizes: Mapping[str, int], *, std: float, mean: float = 0.0, dtype: jnp.dtype | None = None
    ) -> nnx.Param:
        """A parameter with these logical axes and sizes, with this mean and deviation when drawn from a seed."""
        stacked = {} if self.layers is None else {"layers": self.layers}
        sizes = {**stacked, **sizes}
        value = jax.ShapeDtypeStruct(tuple(sizes.values()), self.dtype if dtype is None else dtype)
        return nnx.Param(cast(Any, value), logical_axes=tuple(sizes), init_mean=mean, init_std=std)

    def weight(self, sizes: Mapping[str, int], *, fan_in: int, gain: float = 1.0) -> nnx.Param:
        """A matrix whose outputs have `gain` times the scale of its inputs."""
        return self(sizes, std=gain * fan_in**-0.5)

    def norm(self, axis: str, size: int) -> nnx.Param:
        """The scale of an RMS norm."""
        return self({axis: size}, std=0.0, mean=1.0)


@dataclass(frozen=True)
class Structure:
    """What a module is without its arrays: hashable, so a static argument of `jax.jit`."""

    graph: nnx.GraphDef
    tree: jax.tree_util.PyTreeDef

    def build(self, leaves: Any) -> Any:
        """The module with these leaves; of a stack, one layer's leaves (`leaf[i]` of each) make that layer."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, leaves))


def flatten(module: nnx.Module) -> tuple[Structure, tuple[jax.Array, ...]]:
    """Split a module into its structure and its arrays: done once, so that a jitted call handles only flat arrays."""
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten(state)
    return Structure(graph, tree), tuple(leaves)


def partition_specs(module: nnx.Module) -> tuple[PartitionSpec, ...]:
    """For each leaf of `flatten(module)`, how it lies on a mesh: routed experts over `engine`, the rest replicated."""
    return tuple(PartitionSpec(*(SHARDING.get(axis) for axis in p.logical_axes)) for _, p in named_parameters(module))


def shardings(module: nnx.Module, mesh: Mesh) -> tuple[NamedSharding, ...]:
    """`partition_specs` on a mesh that has the axis `engine`."""
    return tuple(NamedSharding(mesh, spec) for spec in partition_specs(module))


def named_parameters(module: nnx.Module) -> list[tuple[str, Any]]:
    """Dotted path and `nnx.Param` of each leaf, in the order of `flatten`."""
    _, state = nnx.split(module)
    found = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda node: isinstance(node, nnx.Variable))[0]
    return [(".".join(str(key.key) for key in path), parameter) for path, parameter in found]


def with_leaves(module: ModuleT, leaves: Any) -> ModuleT:
    """A module of the same structure that holds these arrays."""
    return cast(ModuleT, flatten(module)[0].build(leaves))


def draw(module: ModuleT, seed: int, mesh: Mesh | None = None) -> ModuleT:
    """Values from a seed, the same to the last bit on every mesh, in every process and with every library version."""
    parameters = named_parameters(module)
    values = [_draw_one(seed, path, parameter) for path, parameter in parameters]
    return with_leaves(module, place(module, values, mesh))


def seed_weights_id(seed: int) -> str:
    """Names the weights that `draw` makes of a seed; the number behind `uniform` changes when `draw` does."""
    return f"uniform-1-seed-{seed}"


def place(module: nnx.Module, values: Sequence[np.ndarray], mesh: Mesh | None) -> tuple[jax.Array, ...]:
    """Host arrays, in the order of `flatten(module)`, onto a mesh, or onto the default device."""
    if mesh is None:
        return tuple(jnp.array(value) for value in values)
    # Not `device_put`: on a mesh of several processes it sends every value around to compare it.
    return tuple(
        jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
        for value, sharding in zip(values, shardings(module, mesh), strict=True)
    )


def _draw_one(seed: int, path: str, parameter: Any) -> np.ndarray:
    """Uniform values with the declared mean and deviation, from raw Philox bits.

    NumPy keeps those bits for ever, but not what it makes of them for a normal distribution; and stored KV is found
    again by the seed of its weights alone.
    """
    declared = parameter.get_value()
    key = np.frombuffer(hashlib.sha256(f"{seed}/{path}".encode()).digest()[:16], "<u8")
    size = math.prod(declared.shape)
    bits = np.random.Philox(key=key).random_raw(-(-size // 2)).astype("<u8").view("<u4")[:size] >> 8
    unit = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-24) - np.float32(0.5)
    spread = np.float32(parameter.init_std * math.sqrt(12))
    return (np.float32(parameter.init_mean) + unit * spread).reshape(declared.shape).astype(declared.dtype)
