"""Typed, frozen specs of models and clusters, and presets in TOML."""

from dualpath_configs.cluster import (
    MODES,
    ClusterSpec,
    EngineSpec,
    ModeSpec,
    NetworkSpec,
    SchedulingSpec,
    StorageSpec,
)
from dualpath_configs.errors import SpecError
from dualpath_configs.lanes import LaneSpec, LanesSpec, ModelLaneSpec
from dualpath_configs.layers import preset_names
from dualpath_configs.load import load_cluster
from dualpath_configs.model import ModelSpec, YarnSpec

__all__ = [
    "MODES",
    "ClusterSpec",
    "EngineSpec",
    "LaneSpec",
    "LanesSpec",
    "ModeSpec",
    "ModelLaneSpec",
    "ModelSpec",
    "NetworkSpec",
    "SchedulingSpec",
    "SpecError",
    "StorageSpec",
    "YarnSpec",
    "load_cluster",
    "preset_names",
]
