"""Orbax checkpoints: `model.json` with the spec, and `parameters` with one array for each parameter path."""

import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, SingleDeviceSharding

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.decoder import Decoder
from dualpath_jax.models.loading import require_same_model
from dualpath_jax.models.parameters import flatten, named_parameters, shardings, with_leaves
from dualpath_jax.models.tensor_files import CheckpointError, read_json

SPEC_FILE = "model.json"
PARAMETERS = "parameters"


def save(model: Decoder, path: str | Path) -> None:
    """Write a checkpoint into a folder that does not hold one yet; returns when it is complete on disk."""
    folder = Path(path).absolute()
    if (folder / PARAMETERS).exists():
        raise CheckpointError(f"{folder}: holds a checkpoint already: expected a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC_FILE).write_text(model.spec.model_dump_json(indent=2) + "\n")
    names = [name for name, _ in named_parameters(model)]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / PARAMETERS, dict(zip(names, flatten(model)[1], strict=True)))


def restore(spec: ModelSpec, path: str | Path, mesh: Mesh | None = None) -> Decoder:
    """A decoder from a checkpoint of `save`, each array placed as the sharding table says.

    Raises:
        CheckpointError: it is not there, incomplete, or of another model, shape or dtype.
    """
    folder = Path(path).absolute()
    stored_spec = ModelSpec.model_validate_json(json.dumps(read_json(folder / SPEC_FILE)))
    require_same_model(stored_spec, spec, folder / SPEC_FILE)
    if not (folder / PARAMETERS).is_dir():
        raise CheckpointError(f"{folder}: no {PARAMETERS} folder: expected a complete checkpoint")
    model = Decoder(spec)
    declared = {name: parameter.get_value() for name, parameter in named_parameters(model)}
    places: Any = shardings(model, mesh) if mesh else [SingleDeviceSharding(jax.devices()[0])] * len(declared)
    wanted = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)
        for (name, value), where in zip(declared.items(), places, strict=True)
    }
    with ocp.StandardCheckpointer() as checkpointer:
        _check(checkpointer.metadata(folder / PARAMETERS).item_metadata.tree, declared, folder)
        restored = checkpointer.restore(folder / PARAMETERS, wanted)
    return with_leaves(model, [restored[name] for name in declared])


def _check(stored: dict[str, Any], declared: dict[str, Any], folder: Path) -> None:
    for name in sorted(set(stored) | set(declared)):
        got, expected = (_described(tree.get(name)) for tree in (stored, declared))
        if got != expected:
            raise CheckpointError(f"{folder}: parameter {name} is {got}: expected {expected}")


def _described(array: Any) -> str:
    return "absent" if array is None else f"{array.dtype} {tuple(array.shape)}"
