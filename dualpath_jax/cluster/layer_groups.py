"""The layer groups that prefill runs, and the parts of blocks that are read for them."""

from dualpath_configs import ClusterSpec

LayerGroup = tuple[int, int]
"""Layers `[first, last)`."""


def layer_groups(layers: int, layers_per_group: int) -> tuple[LayerGroup, ...]:
    """All layers in order; the last group may be smaller."""
    return tuple((first, min(first + layers_per_group, layers)) for first in range(0, layers, layers_per_group))


def prefill_groups(spec: ClusterSpec, layers: int) -> tuple[LayerGroup, ...]:
    """What one step of prefill runs; everything at once where the mode is not layerwise."""
    return layer_groups(layers, spec.scheduling.layers_per_group if spec.mode.layerwise else layers)


def read_parts(spec: ClusterSpec, layers: int) -> tuple[LayerGroup, ...]:
    """What is read of each block at a time, on either side: the whole of it, or a layer group of prefill."""
    return prefill_groups(spec, layers) if spec.scheduling.read_order == "layers" else layer_groups(layers, layers)
