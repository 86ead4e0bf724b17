"""The leader of an engine group: makes each call together with its followers, and puts the results together."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np

from dualpath_jax.engine.base import (
    DecodeRequest,
    EngineGroup,
    PrefillChunk,
    PrefillPass,
    Slot,
    Stage,
    TokenChoice,
)
from dualpath_jax.engine.group import group_pb2 as pb
from dualpath_jax.engine.group.link import GroupLost, Link
from dualpath_jax.engine.group.messages import (
    insert_message,
    pass_message,
    pieces_of,
    put_pieces,
    slot_message,
    slot_of,
    token_choice,
)

T = TypeVar("T")

WARM_UP_S = 1800.0
"""A model's programs may take minutes to compile; a process that dies meanwhile is noticed by its silence."""

CLOSE_S = 5.0


class GroupDiverged(RuntimeError):  # noqa: N818 - the name of what happened
    """The processes of a group did not do the same: nothing that they hold can be relied on."""


@final
@dataclass(frozen=True)
class RemoteEngines:
    """A follower: the stream to it and the engines that it has."""

    link: Link
    engines: range


@final
@dataclass(frozen=True)
class Reply:
    """What a follower came to."""

    of: RemoteEngines
    answer: pb.Answer
    pieces: list[pb.Piece]


@final
class LeaderEngineGroup(EngineGroup):
    """The engines of all processes of a group as one: `own` in this process, the others' at their followers.

    Every call is made by all processes, in the same order. A follower whose answer is `call_deadline_s` late is lost;
    what happens then is the link's `on_lost`, and GroupLost is raised where that returns.
    """

    def __init__(self, own: EngineGroup, followers: Sequence[RemoteEngines], *, call_deadline_s: float) -> None:
        self._own = own
        self._followers = tuple(followers)
        self._call_deadline_s = call_deadline_s
        self._pass: PrefillPass | None = None
        self._open = True
        self._in_step = True
        self.layout = own.layout
        self.identity = own.identity
        self.engines = own.engines
        self.local_engines = range(own.engines)
        self.limits = own.limits
        self.vocab_size = own.vocab_size
        held = [e for engines in (own.local_engines, *(f.engines for f in followers)) for e in engines]
        if sorted(held) != list(self.local_engines):
            raise ValueError(f"the processes have engines {held}: expected each of {own.engines} once")

    def warm_up_prefill(self, layer_groups: Sequence[tuple[int, int]]) -> None:
        groups = [pb.Layers(first=first, last=last) for first, last in layer_groups]
        call = pb.Call(warm_up_prefill=pb.WarmUpPrefill(groups=groups))
        self._together(call, lambda: self._own.warm_up_prefill(layer_groups), within_s=WARM_UP_S)

    def warm_up_decode(self) -> None:
        self._together(pb.Call(warm_up_decode=pb.WarmUpDecode()), self._own.warm_up_decode, within_s=WARM_UP_S)

    def plan_prefill(self, chunks: Sequence[PrefillChunk]) -> PrefillPass:
        return self._own.plan_prefill(chunks)

    def new_stage(self, layers: int) -> Stage:
        return self._own.new_stage(layers)

    def start_prefill(self, pass_: PrefillPass) -> None:
        self._pass = pass_
        self._together(pb.Call(start_prefill=pass_message(pass_)), lambda: self._own.start_prefill(pass_))

    def run_layers(self, first: int, last: int, stage: Stage) -> np.ndarray:
        pass_ = self._pass
        if pass_ is None:
            raise ValueError("no prefill pass is running: call start_prefill first")
        call = pb.Call(run_layers=pb.RunLayers(layers=pb.Layers(first=first, last=last)))
        own_kv, replies = self._together(
            call,
            lambda: self._own.run_layers(first, last, stage),
            pieces=lambda follower: self._stage_pieces(pass_, last - first, stage, follower.engines),
        )
        whole = np.zeros((self.engines, *own_kv.shape[1:]), np.uint8)
        whole[_rows(self._own.local_engines)] = own_kv
        for reply in replies:
            put_pieces(reply.pieces, whole[_rows(reply.of.engines)].reshape(-1))
        return whole

    def _stage_pieces(self, pass_: PrefillPass, layers: int, stage: Stage, engines: range) -> Iterable[pb.Piece]:
        """The prefix KV of these engines' chunks, where it lies in the stage."""
        for chunk, block in zip(pass_.chunks, pass_.stage_blocks, strict=True):
            size = chunk.start // self.layout.block_tokens * self.layout.layer_block_bytes
            if chunk.engine not in engines or not size:
                continue
            for layer in range(layers):
                offset = stage.offset(pass_, layers, engine=chunk.engine, layer=layer, block=block)
                yield from pieces_of(offset, stage.buffer[offset : offset + size])

    def finish_prefill(self) -> list[TokenChoice | None]:
        choices, replies = self._together(pb.Call(finish_prefill=pb.FinishPrefill()), self._own.finish_prefill)
        for reply in replies:
            for choice in reply.answer.choices:
                choices[choice.chunk] = token_choice(choice)
        self._pass = None
        return choices

    def can_insert(self, engine: int, total_tokens: int) -> bool:
        return self._own.can_insert(engine, total_tokens)

    def insert(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> Slot:
        slot, replies = self._together(
            pb.Call(insert=insert_message(request)),
            lambda: self._own.insert(request, blocks),
            pieces=lambda follower: self._block_pieces(blocks) if request.engine in follower.engines else (),
        )
        for reply in replies:
            if slot_of(reply.answer.slot) != slot:
                raise GroupDiverged(f"{reply.of.link.name} took {slot_of(reply.answer.slot)}: expected {slot}")
        return slot

    def _block_pieces(self, blocks: Sequence[np.ndarray]) -> Iterable[pb.Piece]:
        for place, block in enumerate(blocks):
            yield from pieces_of(place * self.layout.block_bytes, block)

    def step(self) -> list[tuple[Slot, TokenChoice]]:
        results, replies = self._together(pb.Call(step=pb.Step()), self._own.step)
        for reply in replies:
            results += [(slot_of(choice.slot), token_choice(choice)) for choice in reply.answer.choices]
        return sorted(results, key=lambda result: (result[0].engine, result[0].index))

    def export_block(self, slot: Slot, block: int) -> np.ndarray:
        holder = next((follower for follower in self._followers if slot.engine in follower.engines), None)
        if holder is None:
            return self._own.export_block(slot, block)
        call = pb.Call(export_block=pb.ExportBlock(slot=slot_message(slot), block=block))
        holder.link.send(pb.Frame(call=call), answer_within_s=self._call_deadline_s)
        reply = _receive(holder)
        if reply.answer.error:
            raise ValueError(reply.answer.error)
        data = np.empty(self.layout.block_bytes, np.uint8)
        put_pieces(reply.pieces, data)
        return data

    def release(self, slot: Slot) -> None:
        self._together(pb.Call(release=slot_message(slot)), lambda: self._own.release(slot))

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._in_step:
            for follower in self._followers:
                follower.link.expect_end()
            with contextlib.suppress(GroupLost):
                self._together(pb.Call(close=pb.Close()), self._own.close, within_s=CLOSE_S)
        for follower in self._followers:
            follower.link.close()

    def _together(
        self,
        call: pb.Call,
        own: Callable[[], T],
        *,
        pieces: Callable[[RemoteEngines], Iterable[pb.Piece]] = lambda _: (),
        within_s: float | None = None,
    ) -> tuple[T, list[Reply]]:
        """Have the followers make a call, with the pieces that each needs, and make it here.

        Raises ValueError where all processes do, and GroupDiverged where only some do. After that, and after anything
        else that is raised here, the processes are not in step: there is nothing left but to close.
        """
        if not self._in_step:
            raise GroupDiverged("an earlier call failed in this process: expected the group to be closed")
        self._in_step = False
        deadline_s = self._call_deadline_s if within_s is None else within_s
        for follower in self._followers:
            follower.link.send(pb.Frame(call=call), pieces(follower), answer_within_s=deadline_s)
        refusal: ValueError | None = None
        try:
            result = own()
        except ValueError as error:
            refusal = error
        replies = [_receive(follower) for follower in self._followers]
        for reply in replies:
            if bool(reply.answer.error) != (refusal is not None):
                raise GroupDiverged(
                    f"{call.WhichOneof('method')}: {reply.of.link.name} says {reply.answer.error or 'yes'!r} and "
                    f"this process {str(refusal or 'yes')!r}: expected all processes of a group to do the same"
                ) from refusal
        self._in_step = True
        if refusal is not None:
            raise refusal
        return result, replies


def _receive(follower: RemoteEngines) -> Reply:
    frame, pieces = follower.link.receive()
    return Reply(follower, frame.answer, pieces)


def _rows(engines: range) -> slice:
    return slice(engines.start, engines.stop)
