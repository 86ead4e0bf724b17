"""Weights from a Hugging Face folder, and the identity of a set of weights."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from jax.sharding import Mesh

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.decoder import Decoder
from dualpath_jax.models.hugging_face import Piece, pieces
from dualpath_jax.models.kv import LIMITS
from dualpath_jax.models.parameters import named_parameters, place, with_leaves
from dualpath_jax.models.tensor_files import (
    SCALE_SUFFIX,
    CheckpointError,
    StoredTensor,
    list_tensors,
    read_json,
    read_tensor,
    tensor_files,
)

CONFIG_FILE = "config.json"
CHOSEN_HERE = LIMITS | {"kv_dtype", "compute_dtype"}
"""Fields of a model spec that its user chooses and no checkpoint fixes."""

logger = logging.getLogger(__name__)


def load_hugging_face(directory: str | Path, spec: ModelSpec, mesh: Mesh | None = None) -> Decoder:
    """A decoder with the weights of a folder that has `config.json` and `*.safetensors` files.

    Weights may be float32, bfloat16, float16, or FP8 with block scales; they become `spec.compute_dtype`. Everything
    is checked before any weight is read.

    Raises:
        CheckpointError: a file, a tensor or the config does not fit; one line says which, what it is, and what was
            expected.
    """
    wanted = pieces(spec)
    tensors, block = _checked_tensors(Path(directory), spec, wanted)
    model = Decoder(spec)
    values = [_assemble(tensors, wanted[path], parameter, block) for path, parameter in named_parameters(model)]
    return with_leaves(model, place(model, values, mesh))


def check_hugging_face(directory: str | Path, spec: ModelSpec) -> None:
    """Raises CheckpointError where `load_hugging_face` would; reads the config and the files' headers alone."""
    _checked_tensors(Path(directory), spec, pieces(spec))


def _checked_tensors(
    folder: Path, spec: ModelSpec, wanted: Mapping[str, Sequence[Piece]]
) -> tuple[Mapping[str, StoredTensor], tuple[int, int]]:
    """The tensors of a folder that fits, and the rows and columns that an FP8 scale is of."""
    config = read_json(folder / CONFIG_FILE)
    require_same_model(_spec(config, folder / CONFIG_FILE), spec, folder / CONFIG_FILE)
    block = _scale_block(config)
    tensors = _without_prediction_layers(list_tensors(folder), spec, config)
    _check(tensors, [piece for group in wanted.values() for piece in group], block, folder)
    return tensors, block


def require_same_model(stored: ModelSpec, spec: ModelSpec, file: Path) -> None:
    """Refuse a checkpoint that was made for another computation."""
    for name in ModelSpec.model_fields:
        got, expected = getattr(stored, name), getattr(spec, name)
        if name not in CHOSEN_HERE and got != expected:
            raise CheckpointError(f"{file}: {name} = {got!r}: expected {expected!r}, as the model spec says")


def _spec(config: Mapping[str, Any], file: Path) -> ModelSpec:
    try:
        return ModelSpec.from_hugging_face(config)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error


def weights_id(directory: str | Path) -> str:
    """64 hex digits that name the weights of a checkpoint folder: they change when any byte of them does.

    Of a Hugging Face folder, `config.json` and the safetensors files count; of any other, all files. The digest is
    SHA-256 over each file's name, size and XXH3-128 of its whole content: reading everything once more is the only way
    not to serve stored KV to weights that were replaced under the same names and sizes. (Orbax writes other bytes each
    time: the same weights saved twice have two ids, which costs hits and nothing else.)
    """
    folder = Path(directory)
    config = folder / CONFIG_FILE
    files = [config, *tensor_files(folder)] if config.is_file() else sorted(f for f in folder.rglob("*") if f.is_file())
    if not files:
        raise CheckpointError(f"{folder}: no files: expected a checkpoint")
    listing = [[str(file.relative_to(folder)), file.stat().st_size, _content_digest(file)] for file in files]
    return hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()


def _content_digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _scale_block(config: Mapping[str, Any]) -> tuple[int, int]:
    rows, columns = (config.get("quantization_config") or {}).get("weight_block_size") or (128, 128)
    return int(rows), int(columns)


def _without_prediction_layers(
    tensors: Mapping[str, StoredTensor], spec: ModelSpec, config: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Leave out the multi-token-prediction layers, which stand after the decoder's own and which nothing here runs."""
    extra = config.get("num_nextn_predict_layers", config.get("num_mtp_layers")) or 0
    last = spec.num_hidden_layers + extra

    def predicts(name: str) -> bool:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        return layer is not None and spec.num_hidden_layers <= int(layer[1]) < last

    kept = {name: tensor for name, tensor in tensors.items() if not predicts(name)}
    if len(kept) < len(tensors):
        logger.info("skipped %d tensors of multi-token-prediction layers", len(tensors) - len(kept))
    return kept


def _check(tensors: Mapping[str, StoredTensor], wanted: Sequence[Piece], block: tuple[int, int], folder: Path) -> None:
    shapes = {piece.tensor: piece.shape for piece in wanted}
    missing = sorted(set(shapes) - set(tensors))
    if missing:
        raise CheckpointError(
            f"{folder}: tensor {missing[0]} is missing{_more(missing)}: expected it with shape {shapes[missing[0]]}"
        )
    for name, stored in tensors.items():
        if stored.dtype == "F8_E4M3" and name in shapes:
            if len(shapes[name]) != 2:
                raise CheckpointError(f"{stored.file}: tensor {name} is FP8: expected that of matrices only")
            rows, columns = shapes[name]
            shapes[name + SCALE_SUFFIX] = -(-rows // block[0]), -(-columns // block[1])
            if name + SCALE_SUFFIX not in tensors:
                raise CheckpointError(f"{stored.file}: tensor {name} is FP8: expected {name}{SCALE_SUFFIX} beside it")
    superfluous = sorted(set(tensors) - set(shapes))
    if superfluous:
        file = tensors[superfluous[0]].file
        raise CheckpointError(
            f"{file}: tensor {superfluous[0]} is superfluous{_more(superfluous)}: expected no such tensor"
        )
    for name, expected in shapes.items():
        if tensors[name].shape != expected:
            raise CheckpointError(
                f"{tensors[name].file}: tensor {name} has shape {tensors[name].shape}: expected {expected}"
            )


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _assemble(
    tensors: Mapping[str, StoredTensor], group: Sequence[Piece], parameter: Any, block: tuple[int, int]
) -> np.ndarray:
    """One parameter from its pieces, in its declared dtype."""
    declared = parameter.get_value()
    values = np.empty(declared.shape, declared.dtype)
    for piece in group:
        values[piece.index] = piece.convert(read_tensor(tensors, piece.tensor, block))
    return values
