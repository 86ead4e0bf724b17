"""The block format: what stands in front of a block's payload, so that a file says what it is and whether it is whole.

A stored block is a header of `HEADER_BYTES` followed by the Full Block, and nothing else. Interval map of the header
(integers little-endian):

    [   0,    8)  magic
    [   8,   12)  format version
    [  12,   16)  layers L
    [  16,   24)  payload bytes
    [  24,   40)  layout digest
    [  40,   72)  key
    [  72,  104)  parent key
    [ 104,  136)  SHA-256 of the token ids, as `keys.token_bytes` writes them
    [ 136,  144)  XXH3-64 of the payload
    [ 144,  256)  zero
    [ 256,  256 + 8 L)  XXH3-64 of each layer's bytes, in order
    [ ...,  4080)  zero
    [4080, 4096)  XXH3-128 of [0, 4080), so that no byte of the header, padding included, is unchecked

4096 bytes: the largest block size of common disks and the page size, so the payload of an unbuffered (O_DIRECT) read
stays aligned in the file and in memory; 1.6 % of a block of 256 KiB. It has room for 478 layers. A checksum per layer
lets a layer range be read and verified without the rest; the one over the payload verifies a whole block in one call,
for threads that give up the interpreter lock once a layer get in each other's way (measured: a quarter less time a
block of 256 KiB with four threads). XXH3 guards against damage, not against an attacker who can write to the store;
keys and token digests are SHA-256.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import final

import xxhash

from dualpath_storage.layout import KVLayout

HEADER_BYTES = 4096
FORMAT_VERSION = 1

_MAGIC = b"DUALPKV\n"
_FIXED = struct.Struct("<8sIIQ16s32s32s32sQ")
_SUMS_START = 256
_DIGEST_START = HEADER_BYTES - 16
PayloadSum = xxhash.xxh3_64
"""The checksum over a payload, which can be given piece by piece as they are read (`update`)."""

MAX_LAYERS = (_DIGEST_START - _SUMS_START) // 8


class HeaderError(Exception):
    """These bytes are no header of this format; the text says why."""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """A header whose own checksum holds."""

    layout_digest: bytes
    key: bytes
    parent: bytes
    tokens_digest: bytes
    payload_bytes: int
    payload_sum: int
    layer_sums: tuple[int, ...]


def read_header(raw: bytes | bytearray | memoryview) -> BlockHeader:
    """Parse the first `HEADER_BYTES` of a block. Raises HeaderError."""
    if len(raw) < HEADER_BYTES:
        raise HeaderError(f"truncated: {len(raw)} bytes of a header of {HEADER_BYTES}")
    view = memoryview(raw)[:HEADER_BYTES]
    magic, version, layers, size, layout, key, parent, tokens, payload_sum = _FIXED.unpack_from(view)
    if magic != _MAGIC:
        raise HeaderError(f"not a KV block: it begins with {magic!r}")
    if xxhash.xxh3_128_digest(view[:_DIGEST_START]) != view[_DIGEST_START:]:
        raise HeaderError("the header's checksum does not hold")
    if version != FORMAT_VERSION:
        raise HeaderError(f"format version {version}: this library reads {FORMAT_VERSION}")
    if layers > MAX_LAYERS:
        raise HeaderError(f"{layers} layers: a header holds {MAX_LAYERS}")
    sums = struct.unpack_from(f"<{layers}Q", view, _SUMS_START)
    return BlockHeader(layout, key, parent, tokens, size, payload_sum, sums)


@final
class BlockFormat:
    """Packs and verifies the blocks of one layout."""

    def __init__(self, layout: KVLayout) -> None:
        if layout.layers > MAX_LAYERS:
            raise ValueError(f"KV layout has {layout.layers} layers: a block header has room for {MAX_LAYERS}")
        self.block_bytes = layout.block_bytes
        self.layout_digest = layout.digest
        self._layer_bytes = layout.layer_block_bytes
        self._layers = layout.layers
        self._sums = struct.Struct(f"<{layout.layers}Q")

    def pack_header(self, key: bytes, parent: bytes, tokens: bytes, payload: memoryview) -> bytes:
        """The header of a block with this payload (bytes, `layout.block_bytes` long); keys have 32 bytes."""
        header = bytearray(HEADER_BYTES)
        tokens_digest = hashlib.sha256(tokens).digest()
        _FIXED.pack_into(
            header,
            0,
            _MAGIC,
            FORMAT_VERSION,
            self._layers,
            len(payload),
            self.layout_digest,
            key,
            parent,
            tokens_digest,
            xxhash.xxh3_64_intdigest(payload),
        )
        self._sums.pack_into(header, _SUMS_START, *self._layer_sums(payload))
        header[_DIGEST_START:] = xxhash.xxh3_128_digest(memoryview(header)[:_DIGEST_START])
        return bytes(header)

    def verify(
        self,
        header: bytes | bytearray,
        payload: memoryview,
        *,
        key: bytes,
        tokens: bytes,
        stored_bytes: int,
        layers: tuple[int, int] | None = None,
        payload_sum: PayloadSum | None = None,
    ) -> str | None:
        """Why these are not the block `key` with these tokens, or those layers `[first, last)`; None if they are.

        `stored_bytes` is how many bytes the block was seen to have in the store, header included. `payload_sum` may
        have seen the payload of a whole block already, all of it and in order; it is computed here otherwise.
        """
        if stored_bytes < HEADER_BYTES:
            return f"truncated: {stored_bytes} bytes of a header of {HEADER_BYTES}"
        try:
            parsed = read_header(header)
        except HeaderError as error:
            return str(error)
        if damage := self._identity_damage(parsed, key, tokens) or self._length_damage(parsed, stored_bytes, layers):
            return damage
        if layers is not None:
            return self.verify_layers(parsed, layers[0], payload)
        return self._payload_damage(parsed, payload, payload_sum or PayloadSum(payload))

    def verify_layers(self, header: BlockHeader, first: int, payload: memoryview) -> str | None:
        """Why `payload` is not the layers from `first` on, as many as it has bytes for; None where it is."""
        for layer, actual in enumerate(self._layer_sums(payload), first):
            if header.layer_sums[layer] != actual:
                return f"layer {layer}'s checksum does not hold"
        return None

    def _layer_sums(self, payload: memoryview) -> list[int]:
        size = self._layer_bytes
        checksum = xxhash.xxh3_64_intdigest
        return [checksum(payload[start : start + size]) for start in range(0, len(payload), size)]

    def _identity_damage(self, header: BlockHeader, key: bytes, tokens: bytes) -> str | None:
        if header.key != key:
            return f"holds another block, {header.key.hex()}"
        if header.layout_digest != self.layout_digest:
            return f"has the KV layout {header.layout_digest.hex()}, not {self.layout_digest.hex()}"
        if header.tokens_digest != hashlib.sha256(tokens).digest():
            return "was written for other tokens"
        return None

    def _length_damage(self, header: BlockHeader, stored_bytes: int, layers: tuple[int, int] | None) -> str | None:
        if header.payload_bytes != self.block_bytes or len(header.layer_sums) != self._layers:
            return f"claims {header.payload_bytes} bytes in {len(header.layer_sums)} layers, against its layout"
        whole_bytes = HEADER_BYTES + self.block_bytes
        needed_bytes = whole_bytes if layers is None else HEADER_BYTES + layers[1] * self._layer_bytes
        if stored_bytes < needed_bytes:
            return f"truncated: {stored_bytes} bytes of {needed_bytes}"
        if stored_bytes > whole_bytes:
            return f"has trailing bytes after its {whole_bytes}"
        return None

    def _payload_damage(self, header: BlockHeader, payload: memoryview, payload_sum: PayloadSum) -> str | None:
        if header.payload_sum == payload_sum.intdigest():
            return None
        return self.verify_layers(header, 0, payload) or "the payload's checksum does not hold"
