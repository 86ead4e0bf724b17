"""The KV layout: the one source of bytes for buffers, files, transfers and device arrays.

Interval map of a Full Block, `L` layers of `t` tokens of `w` bytes (all little-endian, no padding):

    layer l, token i, field f:   [(l * t + i) * w + offset(f), ... + size(f))
    Layer Block l:               [l * t * w, (l + 1) * t * w)
    layers [a, b):               [a * t * w, b * t * w)   (contiguous, so a layer group moves as one piece)
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Self

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1}


@dataclass(frozen=True)
class KVField:
    """One field of a token's KV in one layer: the MLA latent, the rope key, an indexer key, a GQA key, ..."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KV field {self.name!r} has dtype {self.dtype!r}: expected one of {sorted(ITEM_BYTES)}")
        if not self.shape or any(n <= 0 for n in self.shape):
            raise ValueError(f"KV field {self.name!r} has shape {self.shape}: expected positive sizes")

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class KVLayout:
    """The fields of one token in one layer, the layer count and the block size."""

    fields: tuple[KVField, ...]
    layers: int
    block_tokens: int

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"KV layout has fields {names}: expected at least one, with distinct names")
        if self.layers <= 0 or self.block_tokens <= 0:
            raise ValueError(
                f"KV layout has {self.layers} layers of {self.block_tokens} tokens: expected positive sizes"
            )

    @classmethod
    def mla(cls, *, layers: int, latent: int, rope: int, dtype: str, block_tokens: int = 64) -> Self:
        """Multi-head latent attention: the latent with the rope key beside it (DeepSeek-V2, arXiv 2405.04434)."""
        return cls((KVField("latent", (latent,), dtype), KVField("rope", (rope,), dtype)), layers, block_tokens)

    @property
    def token_layer_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return sum(field.size_bytes for field in self.fields)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one Layer Block `[1, tokens, bytes]`."""
        return self.block_tokens * self.token_layer_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one Full Block `[layers, tokens, bytes]`."""
        return self.layers * self.layer_block_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        return self.layers * self.token_layer_bytes

    @property
    def digest(self) -> bytes:
        """16 bytes that two layouts share only if their bytes mean the same."""
        canonical = json.dumps(
            {
                "fields": [[field.name, list(field.shape), field.dtype] for field in self.fields],
                "layers": self.layers,
                "block_tokens": self.block_tokens,
            },
            separators=(",", ":"),
            sort_keys=True,
        )
        return hashlib.sha256(canonical.encode()).digest()[:16]

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, the last one perhaps partial."""
        return -(-tokens // self.block_tokens)

    def layer_span(self, first: int, last: int) -> slice:
        """Byte range of layers `[first, last)` within a Full Block."""
        if not 0 <= first <= last <= self.layers:
            raise ValueError(f"layers [{first}, {last}): expected a range within [0, {self.layers})")
        return slice(first * self.layer_block_bytes, last * self.layer_block_bytes)
