"""Messages of the transfer stream as bytes: header length, header (`transfer.proto`), payload."""

import struct
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError

from dualpath_jax.transfer.base import RegionWrite
from dualpath_jax.transfer.nixl_pb2 import NixlAnswers, NixlRequests
from dualpath_jax.transfer.transfer_pb2 import Frame, Pieces, Reply

METHOD = "Write"
SERVICE = "dualpath.transfer.Transfer"
PATH = f"/{SERVICE}/{METHOD}"

FRAME_BYTES = 2 * 1024 * 1024
"""Payload of a full frame. Measured on loopback in processor time of both ends: frames of half the size cost a tenth
more, since each one costs Python the same, and larger ones gain nothing."""

MAX_BATCH_PIECES = 65_536
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Frames of a batch with the most pieces stay below this (26 bytes a piece at most), and so does everything else."""

MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

Header = TypeVar("Header", Frame, Reply, NixlRequests, NixlAnswers)

_LENGTH = struct.Struct("<I")


def pieces_of(batch: Sequence[RegionWrite]) -> Pieces:
    """The piece table of a batch. Raises ValueError where it is too long for one message."""
    if len(batch) > MAX_BATCH_PIECES:
        raise ValueError(f"a batch of {len(batch)} pieces: expected at most {MAX_BATCH_PIECES}; cut it")
    indices: dict[tuple[int, int], int] = {}
    regions = [indices.setdefault((write.region.region_id, write.region.generation), len(indices)) for write in batch]
    return Pieces(
        region_id=[region_id for region_id, _ in indices],
        generation=[generation for _, generation in indices],
        region=regions,
        offset_bytes=[write.offset_bytes for write in batch],
        size_bytes=[len(write.source) for write in batch],
    )


def encode(header: Frame | Reply, payload: Sequence[memoryview] = ()) -> bytes:
    """One message; copies the payload, so that its sources are free once this has returned."""
    head = header.SerializeToString()
    return b"".join((_LENGTH.pack(len(head)), head, *payload))


def decode_frame(message: bytes) -> tuple[Frame, memoryview]:
    """A frame's header and its payload, a view of the message. Raises ValueError for anything else."""
    head, payload = _split(message)
    return parse(Frame, head), payload


def decode_reply(message: bytes) -> Reply:
    """A reply's header. Raises ValueError for anything else."""
    return parse(Reply, _split(message)[0])


def parse(kind: type[Header], head: bytes) -> Header:
    """A header of that kind. Raises ValueError for anything else."""
    try:
        return kind.FromString(head)
    except DecodeError as error:
        raise ValueError(f"a transfer message whose header is no {kind.__name__}: {error}") from error


def _split(message: bytes) -> tuple[bytes, memoryview]:
    if len(message) < _LENGTH.size:
        raise ValueError(f"a transfer message of {len(message)} bytes: expected at least {_LENGTH.size}")
    end = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    if end > len(message):
        raise ValueError(f"a transfer message of {len(message)} bytes has a header that ends at {end}")
    return message[_LENGTH.size : end], memoryview(message)[end:]
