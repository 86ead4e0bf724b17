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
from dualpath_configs.load import load_cluster, load_simulated, simulated_names
from dualpath_configs.measured import MeasuredSpec
from dualpath_configs.model import ModelSpec, YarnSpec
from dualpath_configs.modelled import simulated_cluster
from dualpath_configs.simulated import (
    SIMULATED_MODES,
    CalibrationSpec,
    HardwareSpec,
    SimulatedModelSpec,
    SimulatedSpec,
)

__all__ = [
    "MODES",
    "SIMULATED_MODES",
    "CalibrationSpec",
    "ClusterSpec",
    "EngineSpec",
    "HardwareSpec",
    "LaneSpec",
    "LanesSpec",
    "MeasuredSpec",
    "ModeSpec",
    "ModelLaneSpec",
    "ModelSpec",
    "NetworkSpec",
    "SchedulingSpec",
    "SimulatedModelSpec",
    "SimulatedSpec",
    "SpecError",
    "StorageSpec",
    "YarnSpec",
    "load_cluster",
    "load_simulated",
    "preset_names",
    "simulated_cluster",
    "simulated_names",
]
