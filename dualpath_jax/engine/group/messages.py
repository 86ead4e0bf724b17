"""The engine contract's arguments and results as messages, and bytes in pieces."""

from collections.abc import Iterable, Iterator

import numpy as np

from dualpath_jax.engine.base import DecodeRequest, PrefillChunk, PrefillPass, Sampling, Slot, TokenChoice
from dualpath_jax.engine.group import group_pb2 as pb

PIECE_BYTES = 2 << 20
PROCESS = "process"
"""Metadata of `Carry`."""

MESSAGE_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def pieces_of(offset: int, data: np.ndarray) -> Iterator[pb.Piece]:
    """Contiguous bytes, which may change once this has been read to its end."""
    flat = data.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, PIECE_BYTES):
        piece = flat[start : start + PIECE_BYTES]
        yield pb.Piece(offset=offset + start, data=piece.tobytes())


def put_pieces(pieces: Iterable[pb.Piece], into: np.ndarray) -> None:
    """Write pieces where they belong in a flat uint8 buffer. Raises ValueError for one that does not fit."""
    for piece in pieces:
        data = np.frombuffer(piece.data, np.uint8)
        if piece.offset + data.size > into.size:
            raise ValueError(f"a piece ends at byte {piece.offset + data.size}: expected at most {into.size}")
        into[piece.offset : piece.offset + data.size] = data


def _sampling_message(sampling: Sampling | None) -> pb.Sampling | None:
    if sampling is None:
        return None
    return pb.Sampling(temperature=sampling.temperature, seed=sampling.seed)


def _sampling(message: pb.Sampling) -> Sampling:
    return Sampling(message.temperature, message.seed)


def pass_message(pass_: PrefillPass) -> pb.StartPrefill:
    """A planned pass."""
    places = zip(pass_.chunks, pass_.token_offsets, pass_.stage_blocks, strict=True)
    chunks = [
        pb.Chunk(
            request=chunk.request,
            engine=chunk.engine,
            tokens=chunk.tokens.tolist(),
            start=chunk.start,
            sampling=_sampling_message(chunk.sampling),
            forced_token=chunk.forced_token,
            token_offset=token_offset,
            stage_block=stage_block,
        )
        for chunk, token_offset, stage_block in places
    ]
    return pb.StartPrefill(chunks=chunks, stage_capacity=pass_.stage_capacity)


def prefill_pass(message: pb.StartPrefill) -> PrefillPass:
    """The pass that `pass_message` describes."""
    chunks = tuple(
        PrefillChunk(
            chunk.request,
            chunk.engine,
            np.array(chunk.tokens, np.int32),
            chunk.start,
            _sampling(chunk.sampling) if chunk.HasField("sampling") else None,
            chunk.forced_token if chunk.HasField("forced_token") else None,
        )
        for chunk in message.chunks
    )
    offsets = tuple(chunk.token_offset for chunk in message.chunks)
    return PrefillPass(chunks, offsets, tuple(chunk.stage_block for chunk in message.chunks), message.stage_capacity)


def insert_message(request: DecodeRequest) -> pb.Insert:
    return pb.Insert(
        request=request.request,
        engine=request.engine,
        prompt_tokens=request.prompt_tokens,
        first_token=request.first_token,
        max_tokens=request.max_tokens,
        sampling=_sampling_message(request.sampling),
        forced_tokens=request.forced_tokens,
    )


def decode_request(message: pb.Insert) -> DecodeRequest:
    """The request that `insert_message` describes."""
    return DecodeRequest(
        message.request,
        message.engine,
        message.prompt_tokens,
        message.first_token,
        message.max_tokens,
        _sampling(message.sampling),
        tuple(message.forced_tokens) or None,
    )


def slot_message(slot: Slot) -> pb.Slot:
    return pb.Slot(engine=slot.engine, index=slot.index, serial=slot.serial)


def slot_of(message: pb.Slot) -> Slot:
    return Slot(message.engine, message.index, message.serial)


def choice_message(choice: TokenChoice, of: int | Slot) -> pb.Choice:
    """What was chosen for the chunk at place `of` of a pass, or for a slot."""
    return pb.Choice(
        chunk=of if isinstance(of, int) else None,
        slot=None if isinstance(of, int) else slot_message(of),
        token=choice.token,
        logprob=choice.logprob,
        top_tokens=choice.top_tokens,
        top_logprobs=choice.top_logprobs,
    )


def token_choice(message: pb.Choice) -> TokenChoice:
    first, second = message.top_tokens
    best, next_best = message.top_logprobs
    return TokenChoice(message.token, message.logprob, (first, second), (best, next_best))
