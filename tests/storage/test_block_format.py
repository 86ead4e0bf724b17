"""Every kind of damage to a stored block is noticed."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dualpath_storage import KVLayout
from dualpath_storage.block_format import HEADER_BYTES, MAX_LAYERS, BlockFormat, HeaderError, read_header
from tests.storage.blocks import FILE_BYTES, LAYOUT, OTHER_LAYOUT, Block, chain

FORMAT = BlockFormat(LAYOUT)
BLOCK, OTHER_BLOCK = chain(2)


def stored(block: Block = BLOCK) -> bytes:
    return FORMAT.pack_header(block.key, block.parent, block.tokens, memoryview(block.data)) + block.data


def damage(file: bytes, block: Block = BLOCK, *, block_format: BlockFormat = FORMAT) -> str | None:
    """What is said of a file's bytes, read into buffers that held the right block before."""
    header, payload = bytearray(HEADER_BYTES), bytearray(block.data)
    header[: len(file)] = file[:HEADER_BYTES]
    payload[: len(file[HEADER_BYTES:])] = file[HEADER_BYTES:]
    whole = memoryview(payload)[: len(block.data)]
    return block_format.verify(header, whole, key=block.key, tokens=block.tokens, stored_bytes=len(file))


def resealed(offset: int, field: bytes) -> bytes:
    """A file whose header has another field and a checksum that holds."""
    header = bytearray(stored()[: HEADER_BYTES - 16])
    header[offset : offset + len(field)] = field
    return bytes(header) + xxhash.xxh3_128_digest(bytes(header)) + BLOCK.data


def test_a_whole_block_verifies() -> None:
    assert len(stored()) == FILE_BYTES
    assert damage(stored()) is None


def test_a_header_says_what_it_was_made_of() -> None:
    header = read_header(stored())
    assert (header.key, header.parent, header.layout_digest) == (BLOCK.key, BLOCK.parent, LAYOUT.digest)
    assert header.payload_bytes == LAYOUT.block_bytes
    assert len(header.layer_sums) == LAYOUT.layers


def test_the_format_has_not_changed() -> None:
    """A change of these bytes needs a new format version: stores out there hold blocks of this one."""
    block = Block(b"k" * 32, b"p" * 32, b"t" * 16, bytes(range(LAYOUT.block_bytes)))
    assert stored(block)[:16] == b"DUALPKV\n\x01\0\0\0\x03\0\0\0"
    assert xxhash.xxh3_128_hexdigest(stored(block)) == "394939a8d7f8c01d95d44b67b7ac3ece"


def test_every_single_byte_counts() -> None:
    file = stored()
    for position in range(FILE_BYTES):
        flipped = bytearray(file)
        flipped[position] ^= 1 << position % 8
        assert damage(bytes(flipped)) is not None, position


@given(position=st.integers(0, FILE_BYTES - 1), mask=st.integers(1, 255))
def test_any_change_of_a_byte_is_noticed(position: int, mask: int) -> None:
    flipped = bytearray(stored())
    flipped[position] ^= mask
    assert damage(bytes(flipped)) is not None


@given(length=st.integers(0, FILE_BYTES - 1))
def test_any_truncation_is_noticed(length: int) -> None:
    assert "truncated" in (damage(stored()[:length]) or "")


@given(extra=st.binary(min_size=1, max_size=50))
def test_trailing_bytes_are_noticed(extra: bytes) -> None:
    assert "trailing" in (damage(stored() + extra) or "")


def test_a_block_of_another_key_is_noticed() -> None:
    assert damage(stored(OTHER_BLOCK)) == f"holds another block, {OTHER_BLOCK.key.hex()}"


def test_other_tokens_are_noticed() -> None:
    asked = Block(BLOCK.key, BLOCK.parent, OTHER_BLOCK.tokens, BLOCK.data)
    assert damage(stored(), asked) == "was written for other tokens"


def test_another_layout_of_equal_size_is_noticed() -> None:
    assert OTHER_LAYOUT.block_bytes == LAYOUT.block_bytes
    assert "layout" in (damage(stored(), block_format=BlockFormat(OTHER_LAYOUT)) or "")


@pytest.mark.parametrize(
    ("offset", "field", "complaint"),
    [
        (0, b"DUALPKX\n", "not a KV block"),
        (8, struct.pack("<I", 2), "format version 2: this library reads 1"),
        (12, struct.pack("<I", 2), "2 layers, against its layout"),
        (12, struct.pack("<I", MAX_LAYERS + 1), "a header holds"),
        (16, struct.pack("<Q", 7), "claims 7 bytes"),
        (24, bytes(16), "KV layout"),
        (40, bytes(32), "another block"),
        (104, bytes(32), "other tokens"),
        (136, bytes(8), "the payload's checksum does not hold"),
    ],
)
def test_each_field_is_checked_by_itself(offset: int, field: bytes, complaint: str) -> None:
    assert complaint in (damage(resealed(offset, field)) or "")


def test_a_layer_range_verifies_alone() -> None:
    header = read_header(stored())
    span = LAYOUT.layer_span(1, 3)
    payload = bytearray(BLOCK.data[span])
    assert FORMAT.verify_layers(header, 1, memoryview(payload)) is None
    payload[-1] ^= 1
    assert FORMAT.verify_layers(header, 1, memoryview(payload)) == "layer 2's checksum does not hold"
    assert FORMAT.verify_layers(header, 0, memoryview(BLOCK.data[span])) == "layer 0's checksum does not hold"


def test_damage_names_the_layer() -> None:
    file = bytearray(stored())
    file[HEADER_BYTES + LAYOUT.layer_block_bytes] ^= 1
    assert damage(bytes(file)) == "layer 1's checksum does not hold"


def test_a_header_that_is_too_short_is_refused() -> None:
    with pytest.raises(HeaderError, match="truncated: 10 bytes"):
        read_header(stored()[:10])


def test_a_layout_with_too_many_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=f"room for {MAX_LAYERS}"):
        BlockFormat(KVLayout.mla(layers=MAX_LAYERS + 1, latent=1, rope=1, dtype="uint8"))
