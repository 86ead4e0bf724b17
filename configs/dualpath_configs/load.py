"""From a preset's name or a TOML file to a validated cluster spec."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from dualpath_configs.base import all_keys
from dualpath_configs.cluster import ClusterSpec
from dualpath_configs.errors import Key, SpecError, shown, spec_error
from dualpath_configs.layers import (
    SIMULATED,
    KeyPath,
    Layer,
    Leaf,
    leaves,
    merged,
    nested,
    preset_names,
    read_file,
    read_overrides,
)
from dualpath_configs.model import ModelSpec
from dualpath_configs.simulated import SimulatedSpec

_CHECKPOINT: KeyPath = ("checkpoint",)


def load_cluster(name_or_path: str, overrides: Mapping[str, object] | None = None) -> ClusterSpec:
    """The cluster spec of a preset (`preset_names()`) or of a TOML file.

    A file may start from another with `extends = "..."`, a preset's name or a path beside it. Where `checkpoint` is
    set, that folder's `config.json` gives the model's shape, over what the file says under `[model]`; `overrides`
    (dotted keys, such as `"storage.url"` or `"mode"`) come last. A relative `checkpoint` in a file starts from that
    file's folder.

    Raises:
        SpecError: in one line: which file, which key, what it was, and what was expected.
    """
    layer, source = read_file(name_or_path, folder=Path())
    above = read_overrides(overrides or {})
    layer = merged(layer, above)
    checkpoint = layer.get(_CHECKPOINT)
    if checkpoint is not None and isinstance(checkpoint.value, str) and checkpoint.value:
        layer = merged(merged(layer, _checkpoint_layer(checkpoint)), above)
        layer[_CHECKPOINT] = Leaf(str(checkpoint.folder / checkpoint.value), checkpoint.source, checkpoint.folder)
    try:
        return ClusterSpec.model_validate(nested(layer))
    except ValidationError as error:
        raise spec_error(error, all_keys(ClusterSpec), lambda key: _source(layer, key, source)) from error


def load_simulated(name_or_path: str, overrides: Mapping[str, object] | None = None) -> SimulatedSpec:
    """The spec of a simulated cluster: of a preset (`simulated_names()`) or of a TOML file, as for `load_cluster`.

    Raises:
        SpecError: in one line: which file, which key, what it was, and what was expected.
    """
    layer, source = read_file(name_or_path, folder=Path(), presets=SIMULATED)
    layer = merged(layer, read_overrides(overrides or {}))
    try:
        return SimulatedSpec.model_validate(nested(layer))
    except ValidationError as error:
        raise spec_error(error, all_keys(SimulatedSpec), lambda key: _source(layer, key, source)) from error


def simulated_names() -> list[str]:
    """Names that `load_simulated` takes besides paths."""
    return preset_names(SIMULATED)


def _checkpoint_layer(checkpoint: Leaf) -> Layer:
    """The model keys that the checkpoint's `config.json` sets."""
    path = checkpoint.folder / str(checkpoint.value) / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(
            f"{checkpoint.source}: checkpoint = {shown(checkpoint.value)}: {path} cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise SpecError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SpecError(f"{path}: {shown(config)}: expected a JSON object")
    try:
        model = ModelSpec.from_hugging_face(config)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error
    return dict(leaves(model.model_dump(exclude_unset=True), ("model",), str(path), checkpoint.folder))


def _source(layer: Layer, key: Key, otherwise: str) -> str:
    """What set the value at `key`: itself, a table around it, or something within it."""
    path = tuple(part for part in key if isinstance(part, str))
    for length in range(len(path), 0, -1):
        leaf = layer.get(path[:length])
        if leaf is not None:
            return leaf.source
    within = {leaf.source for other, leaf in layer.items() if path and other[: len(path)] == path}
    return within.pop() if len(within) == 1 else otherwise
