"""Tensors of a Hugging Face folder: safetensors files, one or many behind an index, FP8 block scales undone."""

import json
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import ml_dtypes
import numpy as np

INDEX_FILE = "model.safetensors.index.json"
SCALE_SUFFIX = "_scale_inv"
DTYPES: Mapping[str, Any] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
LARGEST_HEADER_BYTES = 100_000_000


@final
class CheckpointError(ValueError):
    """A checkpoint that does not fit: the file, the tensor, what was found and what was expected, in one line."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes are: `[start, start + size)` of a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> np.ndarray:
        """The stored values, mapped from the file."""
        return np.memmap(self.file, DTYPES[self.dtype], "r", self.start, self.shape)


def list_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's safetensors files; raises CheckpointError where one is damaged or named twice."""
    found: dict[str, StoredTensor] = {}
    index = _read_index(directory)
    for file in tensor_files(directory):
        for name, tensor in _read_header(file):
            if name in found:
                raise CheckpointError(f"{file}: tensor {name} is also in {found[name].file.name}: expected it once")
            if index.get(name, file.name) != file.name:
                raise CheckpointError(f"{file}: tensor {name} is here: {INDEX_FILE} has it in {index[name]}")
            found[name] = tensor
    lost = sorted(set(index) - set(found))
    if lost:
        raise CheckpointError(f"{directory / index[lost[0]]}: tensor {lost[0]} is missing: {INDEX_FILE} names it here")
    return found


def tensor_files(directory: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint: those of the index, or all where there is none."""
    names = set(_read_index(directory).values()) or {file.name for file in directory.glob("*.safetensors")}
    missing = sorted(name for name in names if not (directory / name).is_file())
    if missing:
        raise CheckpointError(f"{directory / missing[0]}: no such file: {INDEX_FILE} names it")
    if not names:
        raise CheckpointError(f"{directory}: no *.safetensors file: expected a Hugging Face checkpoint")
    return [directory / name for name in sorted(names)]


def _read_index(directory: Path) -> dict[str, str]:
    file = directory / INDEX_FILE
    return dict(read_json(file).get("weight_map", {})) if file.is_file() else {}


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; raises CheckpointError where there is none."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}: expected a JSON object") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: a {type(content).__name__}: expected a JSON object")
    return content


def _read_header(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """A file is: header length (8 bytes, little-endian), JSON header, data; offsets count from the data's start."""
    size_bytes = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(size_bytes - 8, LARGEST_HEADER_BYTES):
            raise CheckpointError(f"{file}: header of {length} bytes in {size_bytes}: expected a safetensors file")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise CheckpointError(f"{file}: header is not JSON: expected a safetensors file") from error
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name == "__metadata__":
            continue
        try:
            tensor = _stored(file, name, entry, 8 + length, size_bytes)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{file}: tensor {name} has a damaged header entry: {entry!r:.80}") from error
        # transformers writes shared experts that a model does not have, as tensors without a value.
        if 0 not in tensor.shape:
            yield name, tensor


def _stored(file: Path, name: str, entry: dict[str, Any], data_start: int, size_bytes: int) -> StoredTensor:
    dtype, shape, (first, last) = entry["dtype"], tuple(map(operator.index, entry["shape"])), entry["data_offsets"]
    if dtype not in DTYPES:
        raise CheckpointError(f"{file}: tensor {name} has dtype {dtype}: expected one of {', '.join(DTYPES)}")
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if min(first, *shape, 0) < 0 or last - first != expected or data_start + last > size_bytes:
        raise CheckpointError(
            f"{file}: tensor {name} has bytes [{first}, {last}) of {size_bytes - data_start}: "
            f"expected {expected} bytes within the file (is it truncated?)"
        )
    return StoredTensor(file, dtype, shape, data_start + first)


def read_tensor(tensors: Mapping[str, StoredTensor], name: str, block: tuple[int, int]) -> np.ndarray:
    """A tensor's values; where it has block scales, `[out, in]` values times the scale of their block, float32.

    `block` is the size of the blocks that share a scale (DeepSeek-V3: 128 by 128; the last ones may be cut short).
    """
    values = tensors[name].read()
    scales = tensors.get(name + SCALE_SUFFIX)
    if scales is None:
        return values
    rows, columns = values.shape
    wide = scales.read().astype(np.float32).repeat(block[0], axis=0)[:rows].repeat(block[1], axis=1)[:, :columns]
    return values.astype(np.float32) * wide
