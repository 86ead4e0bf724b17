"""From a cluster spec to the engine group of one node."""

from typing import Literal

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import EngineGroup
from dualpath_jax.engine.fake import FakeEngineGroup

Role = Literal["prefill", "decode"]


def build_engine(
    spec: ClusterSpec, role: Role, *, compilation_cache_dir: str | None = None, process: int = 0
) -> EngineGroup:
    """The engines of one process of a node, of the kind that `spec.engine.kind` names.

    JAX must be configured by then; the fake ones do not need it.
    """
    if spec.engine.kind == "fake":
        share = spec.engines_per_node // spec.processes_per_node
        return FakeEngineGroup(spec, local_engines=range(process * share, (process + 1) * share))
    from dualpath_jax.engine.flax_engine import FlaxEngineGroup  # JAX starts here

    return FlaxEngineGroup(spec, role=role, compilation_cache_dir=compilation_cache_dir)
