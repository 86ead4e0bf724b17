"""A follower of an engine group: makes the leader's calls on its own engines, one after the other."""

import threading
from collections.abc import Callable, Sequence
from typing import final

import grpc
import numpy as np

from dualpath_jax.engine.base import EngineGroup, PrefillPass, Stage
from dualpath_jax.engine.group import group_pb2 as pb
from dualpath_jax.engine.group import group_pb2_grpc
from dualpath_jax.engine.group.link import Link, LinkSettings
from dualpath_jax.engine.group.messages import (
    MESSAGE_OPTIONS,
    PROCESS,
    choice_message,
    decode_request,
    pieces_of,
    prefill_pass,
    put_pieces,
    slot_message,
    slot_of,
)

Outcome = tuple[pb.Answer, list[pb.Piece]]
"""An answer and the pieces that belong to it."""

LEADER = "the leader (process 0)"


@final
class Follower:
    """The streams to the leader at `addresses`, as its service gives them. Opened before the engine is built."""

    def __init__(self, addresses: str, settings: LinkSettings, *, process: int) -> None:
        calls, pieces = addresses.split()
        self._link = Link(LEADER, settings)
        self._channels = [
            grpc.insecure_channel(address, options=(*MESSAGE_OPTIONS, ("grpc.dscp", dscp)))
            for address, dscp in ((calls, settings.call_dscp), (pieces, settings.piece_dscp))
        ]
        self._link.send(pb.Frame(hello=pb.Hello(process=process, config_digest=settings.config_digest)))
        stubs = [group_pb2_grpc.LeaderStub(channel) for channel in self._channels]
        frames = stubs[0].Follow(self._link.outgoing_frames())
        carried = stubs[1].Carry(self._link.outgoing_pieces(), metadata=((PROCESS, str(process)),))
        for pump, stream in ((self._link.pump_frames, frames), (self._link.pump_pieces, carried)):
            threading.Thread(target=pump, args=(stream,), daemon=True, name=LEADER).start()

    def follow(self, engine: EngineGroup) -> None:
        """Serve until the leader closes the group. Raises GroupLost where the stream ends sooner."""
        calls = EngineCalls(engine)
        while True:
            frame, pieces = self._link.receive()
            call = frame.call
            closing = call.HasField("close")
            if closing:
                self._link.expect_end()
            try:
                answer, own_pieces = calls.apply(call, pieces)
            except ValueError as error:
                answer, own_pieces = pb.Answer(error=str(error) or "ValueError"), []
            self._link.send(pb.Frame(answer=answer), own_pieces)
            if closing:
                self._link.close()
                return

    def close(self) -> None:
        """Let go of the connections."""
        self._link.close()
        for channel in self._channels:
            channel.close()


@final
class EngineCalls:
    """Calls as messages, made on an engine group."""

    def __init__(self, engine: EngineGroup) -> None:
        self._engine = engine
        self._pass: PrefillPass | None = None
        self._stage: Stage | None = None
        self._methods: dict[str, Callable[[pb.Call, Sequence[pb.Piece]], Outcome]] = {
            "warm_up_prefill": self._warm_up_prefill,
            "warm_up_decode": self._warm_up_decode,
            "start_prefill": self._start_prefill,
            "run_layers": self._run_layers,
            "finish_prefill": self._finish_prefill,
            "insert": self._insert,
            "step": self._step,
            "export_block": self._export_block,
            "release": self._release,
            "close": self._close,
        }

    def apply(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Outcome:
        """Make a call. Raises what the engine raises."""
        method = call.WhichOneof("method")
        if method is None:
            raise ValueError("a call without a method: expected one of the engine contract's")
        return self._methods[method](call, pieces)

    def _warm_up_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        self._engine.warm_up_prefill([(group.first, group.last) for group in call.warm_up_prefill.groups])
        return pb.Answer(), []

    def _warm_up_decode(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        self._engine.warm_up_decode()
        return pb.Answer(), []

    def _start_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        self._pass = prefill_pass(call.start_prefill)
        self._engine.start_prefill(self._pass)
        return pb.Answer(), []

    def _run_layers(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Outcome:
        first, last = call.run_layers.layers.first, call.run_layers.layers.last
        new_kv = self._engine.run_layers(first, last, self._filled_stage(last - first, pieces))
        assert self._pass is not None
        used: list[pb.Piece] = []
        for row, tokens in enumerate(used_tokens(self._pass, self._engine.local_engines)):
            for layer in range(last - first):
                offset = (row * (last - first) + layer) * new_kv[row, layer].size
                used += pieces_of(offset, new_kv[row, layer, :tokens])
        return pb.Answer(), used

    def _filled_stage(self, layers: int, pieces: Sequence[pb.Piece]) -> Stage:
        """A stage as the leader's, in which the parts of the engines here are filled."""
        stage = self._stage
        if stage is None or stage.buffer.size < self._engine.new_stage(layers).buffer.size:
            stage = self._stage = self._engine.new_stage(layers)
        put_pieces(pieces, stage.buffer)
        return stage

    def _finish_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        choices = self._engine.finish_prefill()
        chosen = [choice_message(choice, place) for place, choice in enumerate(choices) if choice is not None]
        return pb.Answer(choices=chosen), []

    def _insert(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Outcome:
        layout, request = self._engine.layout, decode_request(call.insert)
        blocks: list[np.ndarray] = []
        if request.engine in self._engine.local_engines:
            whole = np.empty(layout.blocks_of(request.prompt_tokens) * layout.block_bytes, np.uint8)
            put_pieces(pieces, whole)
            blocks = np.split(whole, len(whole) // layout.block_bytes)
        return pb.Answer(slot=slot_message(self._engine.insert(request, blocks))), []

    def _step(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        return pb.Answer(choices=[choice_message(choice, slot) for slot, choice in self._engine.step()]), []

    def _export_block(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        block = self._engine.export_block(slot_of(call.export_block.slot), call.export_block.block)
        return pb.Answer(), [*pieces_of(0, block)]

    def _release(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        self._engine.release(slot_of(call.release))
        return pb.Answer(), []

    def _close(self, call: pb.Call, _: Sequence[pb.Piece]) -> Outcome:
        self._engine.close()
        return pb.Answer(), []


def used_tokens(pass_: PrefillPass, engines: range) -> list[int]:
    """Of each engine, how many packed tokens the pass has."""
    ends = dict.fromkeys(engines, 0)
    for chunk, offset in zip(pass_.chunks, pass_.token_offsets, strict=True):
        if chunk.engine in ends:
            ends[chunk.engine] = max(ends[chunk.engine], offset + len(chunk.tokens))
    return list(ends.values())
