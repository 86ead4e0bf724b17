"""Parameters declared once: shape, dtype, logical axes and initializer stand together.

A module that is constructed holds declarations (`jax.ShapeDtypeStruct` inside `nnx.Param`), no numbers. Values from a
seed, from a checkpoint, and their shardings all follow from the declarations.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
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
        """A parameter with these logical axes and sizes, drawn from a normal distribution when made from a seed."""
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
    """Values from a seed. They depend on the seed and each parameter's path, not on the mesh or the process."""
    parameters = named_parameters(module)

    def draw_all() -> tuple[jax.Array, ...]:
        root = jax.random.key(seed)
        return tuple(_draw_one(root, path, parameter) for path, parameter in parameters)

    placed = jax.jit(draw_all, out_shardings=None if mesh is None else shardings(module, mesh))
    return with_leaves(module, placed())


def _draw_one(root: jax.Array, path: str, parameter: Any) -> jax.Array:
    declared = parameter.get_value()
    salt = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "little")
    noise = jax.random.normal(jax.random.fold_in(root, salt), declared.shape, jnp.float32)
    return (parameter.init_mean + parameter.init_std * noise).astype(declared.dtype)
