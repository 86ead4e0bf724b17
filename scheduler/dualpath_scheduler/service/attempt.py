"""One attempt of a request on a prefill and a decode engine, and what the two report of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dualpath_scheduler.policy import ReadPlan
from dualpath_scheduler.service import scheduler_pb2 as pb


@final
@dataclass(frozen=True)
class Seat:
    """An engine of one life of a node."""

    node_id: str
    incarnation: int
    address: str
    engine: int


@final
class Attempt:
    """Puts the reports of both sides into one order: the prefill side's token first, then the decode side's.

    The two sides report on their own, so the decode side's tokens may come first; they are held back until then.
    """

    def __init__(
        self, number: int, *, plan: ReadPlan, prefill: Seat, decode: Seat, hit_keys: Sequence[bytes] = ()
    ) -> None:
        self.number = number
        self.plan = plan
        self._hit_keys = hit_keys
        self.prefill = prefill
        self.decode = decode
        self.timings = pb.Timings()
        self.hit_tokens = 0
        self.recomputed_blocks = 0
        self._first_token_is_out = False
        self._held: list[pb.Token] = []
        self._decode_has_begun = False
        self._decode_has_ended = False

    @property
    def finished(self) -> bool:
        """Whether all tokens of this attempt have been handed on."""
        return self._first_token_is_out and self._decode_has_ended

    @property
    def reading(self) -> Sequence[bytes]:
        """Keys of the blocks that either side may still have to read."""
        return () if self._first_token_is_out else self._hit_keys

    @property
    def needs_prefill_node(self) -> bool:
        """Whether the loss of the prefill node ends this attempt: it has not certainly handed over everything."""
        return not (self._first_token_is_out and self._decode_has_begun)

    def from_prefill(self, progress: pb.Progress) -> list[pb.Token]:
        """Takes a report of the prefill side; returns the tokens that are next for the client."""
        self._merge(progress.timings)
        if not progress.tokens or self._first_token_is_out:
            return []
        self._first_token_is_out = True
        self.hit_tokens, self.recomputed_blocks = progress.hit_tokens, progress.recomputed_blocks
        ready = [progress.tokens[0], *self._held]
        self._held = []
        return ready

    def from_decode(self, progress: pb.Progress) -> list[pb.Token]:
        """Takes a report of the decode side; returns the tokens that are next for the client."""
        self._merge(progress.timings)
        self._decode_has_begun |= bool(progress.tokens) or progress.finished
        self._decode_has_ended |= progress.finished
        if self._first_token_is_out:
            return list(progress.tokens)
        self._held.extend(progress.tokens)
        return []

    def _merge(self, reported: pb.Timings) -> None:
        """Reading is from the first start to the last end over both sides; all else is one side's to say."""
        mine = self.timings
        if reported.read_start:
            mine.read_start = min(reported.read_start, mine.read_start or reported.read_start)
        mine.read_end = max(mine.read_end, reported.read_end)
        for name in ("prefill_start", "first_token", "end"):
            setattr(mine, name, getattr(reported, name) or getattr(mine, name))
