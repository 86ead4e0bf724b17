"""A follower of an engine group: makes the leader's calls on its own engines, one after the other."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import final

import grpc
import numpy as np

from dualpath_jax.engine.base import EngineGroup, PrefillPass, Stage
from dualpath_jax.engine.group import group_pb2 as pb
from dualpath_jax.engine.group import group_pb2_grpc
from dualpath_jax.engine.group.link import Link, OnLost
from dualpath_jax.engine.group.messages import (
    MESSAGE_OPTIONS,
    choice_message,
    decode_request,
    pieces_of,
    prefill_pass,
    put_pieces,
    slot_message,
    slot_of,
)

Frames = Iterator[pb.Frame]
LEADER = "the leader (process 0)"


@final
class Follower:
    """The stream to the leader at `address`. `connect` before the engine is built, then `follow` to the end.

    `config_digest` must be the leader's. `on_lost` is told where the leader is gone; see `Link`.
    """

    def __init__(self, address: str, *, process: int, config_digest: bytes, silence_s: float, on_lost: OnLost) -> None:
        self._link = Link(LEADER, silence_s=silence_s, on_lost=on_lost)
        self._channel = grpc.insecure_channel(address, options=MESSAGE_OPTIONS)
        self._link.send([pb.Frame(hello=pb.Hello(process=process, config_digest=config_digest))])
        replies = group_pb2_grpc.LeaderStub(self._channel).Follow(self._link.outgoing())
        threading.Thread(target=self._link.pump, args=(replies,), daemon=True, name="leader's calls").start()

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
                for reply in calls.apply(call, pieces):
                    self._link.send([reply])
            except ValueError as error:
                self._link.send([pb.Frame(answer=pb.Answer(error=str(error) or "ValueError"))])
            if closing:
                self._link.close()
                return

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()
        self._channel.close()


@final
class EngineCalls:
    """Calls as messages, made on an engine group."""

    def __init__(self, engine: EngineGroup) -> None:
        self._engine = engine
        self._pass: PrefillPass | None = None
        self._stage: Stage | None = None
        self._methods: dict[str, Callable[[pb.Call, Sequence[pb.Piece]], Frames]] = {
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

    def apply(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Frames:
        """Make a call; its answer, with the pieces that belong to it before it. Raises what the engine raises."""
        method = call.WhichOneof("method")
        if method is None:
            raise ValueError("a call without a method: expected one of the engine contract's")
        return self._methods[method](call, pieces)

    def _warm_up_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        self._engine.warm_up_prefill([(group.first, group.last) for group in call.warm_up_prefill.groups])
        yield _answer()

    def _warm_up_decode(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        self._engine.warm_up_decode()
        yield _answer()

    def _start_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        self._pass = prefill_pass(call.start_prefill)
        self._engine.start_prefill(self._pass)
        yield _answer()

    def _run_layers(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Frames:
        first, last = call.run_layers.layers.first, call.run_layers.layers.last
        new_kv = self._engine.run_layers(first, last, self._filled_stage(last - first, pieces))
        assert self._pass is not None
        for row, tokens in enumerate(used_tokens(self._pass, self._engine.local_engines)):
            for layer in range(last - first):
                used = new_kv[row, layer, :tokens]
                yield from pieces_of((row * (last - first) + layer) * new_kv[row, layer].size, used)
        yield _answer()

    def _filled_stage(self, layers: int, pieces: Sequence[pb.Piece]) -> Stage:
        """A stage as the leader's, in which the parts of the engines here are filled."""
        stage = self._stage
        if stage is None or stage.buffer.size < self._engine.new_stage(layers).buffer.size:
            stage = self._stage = self._engine.new_stage(layers)
        put_pieces(pieces, stage.buffer)
        return stage

    def _finish_prefill(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        choices = self._engine.finish_prefill()
        yield _answer([choice_message(choice, place) for place, choice in enumerate(choices) if choice is not None])

    def _insert(self, call: pb.Call, pieces: Sequence[pb.Piece]) -> Frames:
        layout, request = self._engine.layout, decode_request(call.insert)
        blocks: list[np.ndarray] = []
        if request.engine in self._engine.local_engines:
            whole = np.empty(layout.blocks_of(request.prompt_tokens) * layout.block_bytes, np.uint8)
            put_pieces(pieces, whole)
            blocks = np.split(whole, len(whole) // layout.block_bytes)
        yield pb.Frame(answer=pb.Answer(slot=slot_message(self._engine.insert(request, blocks))))

    def _step(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        yield _answer([choice_message(choice, slot) for slot, choice in self._engine.step()])

    def _export_block(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        yield from pieces_of(0, self._engine.export_block(slot_of(call.export_block.slot), call.export_block.block))
        yield _answer()

    def _release(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        self._engine.release(slot_of(call.release))
        yield _answer()

    def _close(self, call: pb.Call, _: Sequence[pb.Piece]) -> Frames:
        self._engine.close()
        yield _answer()


def used_tokens(pass_: PrefillPass, engines: range) -> list[int]:
    """Of each engine, how many packed tokens the pass has."""
    ends = dict.fromkeys(engines, 0)
    for chunk, offset in zip(pass_.chunks, pass_.token_offsets, strict=True):
        if chunk.engine in ends:
            ends[chunk.engine] = max(ends[chunk.engine], offset + len(chunk.tokens))
    return list(ends.values())


def _answer(choices: Sequence[pb.Choice] = ()) -> pb.Frame:
    return pb.Frame(answer=pb.Answer(choices=choices))
