"""A request in the scheduler, from its submission to its last event."""

from collections.abc import Callable, Sequence
from typing import final

from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.attempt import Attempt, Seat
from dualpath_storage.keys import chain_keys


@final
class Request:
    """What is known of one request; it waits for a prefill engine, then for a decode engine, then runs.

    `work` is what its next attempt has to do: the submitted message, with the tokens of earlier attempts appended.
    `wake` is called whenever there are events to take.
    """

    def __init__(self, message: pb.GenerateRequest, *, order: int, arrival_s: float, wake: Callable[[], None]) -> None:
        self.id = message.request_id
        self.message = message
        self.work = message
        self.order = order
        self.arrival_s = arrival_s
        self.waiting_since_s = arrival_s
        self.attempts = 0
        self.attempt: Attempt | None = None
        self.prefill: Seat | None = None
        self.decode_group: str | None = None
        self.emitted: list[int] = []
        self.done = False
        self._timings = pb.Timings()
        self._wake = wake
        self._tokens: list[pb.Token] = []
        self._finished: pb.Finished | None = None
        self._keys: tuple[bytes, int, list[bytes]] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the next attempt prefills."""
        return len(self.work.tokens)

    def room_tokens(self, block_tokens: int) -> int:
        """Device memory that prompt and generation need on a decode engine, in whole blocks."""
        return -(-(self.prompt_tokens + self.work.max_tokens) // block_tokens) * block_tokens

    def chain(self, root: bytes, block_tokens: int) -> list[bytes]:
        """Keys of the blocks that a store may hold; all but those of the last token, which must be computed."""
        if self._keys is None or self._keys[:2] != (root, self.prompt_tokens):
            keys = chain_keys(root, list(self.work.tokens), block_tokens)
            self._keys = root, self.prompt_tokens, keys[: (self.prompt_tokens - 1) // block_tokens]
        return self._keys[2]

    def begin(self, attempt: Attempt, wall_s: float) -> None:
        """The attempt runs from now on."""
        self.attempts, self.attempt = attempt.number, attempt
        self._timings.assigned = wall_s

    def emit(self, tokens: Sequence[pb.Token], wall_s: float) -> None:
        """Hands tokens of the running attempt to the client; no tokens is fine."""
        if not tokens:
            return
        if not self.emitted and self.attempt is not None:
            self._timings.first_token = self.attempt.timings.first_token or wall_s
        self.emitted.extend(token.token for token in tokens)
        self._tokens.extend(tokens)
        self._wake()

    def requeue(self, work: pb.GenerateRequest, now: float) -> None:
        """Back to the beginning with what is left to do."""
        self.work = work
        self.waiting_since_s = now
        self.attempt = self.prefill = self.decode_group = None

    def end(self, wall_s: float, *, arrival_wall_s: float, error: str = "", cancelled: bool = False) -> None:
        """The last event; what the last attempt did stands in it."""
        finished = pb.Finished(
            error=error, cancelled=cancelled, prompt_tokens=len(self.message.tokens), attempts=self.attempts
        )
        if self.attempt is not None:
            _describe(self.attempt, finished)
            # A later attempt may have loaded what an earlier one had generated: that is no hit of the prompt.
            finished.hit_tokens = min(finished.hit_tokens, finished.prompt_tokens)
        finished.timings.arrival = arrival_wall_s
        finished.timings.assigned = self._timings.assigned
        finished.timings.first_token = self._timings.first_token
        finished.timings.end = finished.timings.end or wall_s
        self.done = True
        self._finished = finished
        self._wake()

    def take_events(self) -> list[pb.GenerateEvent]:
        """Events since the last call, the tokens among them as one."""
        events = [pb.GenerateEvent(tokens=self._tokens)] if self._tokens else []
        if self._finished is not None:
            events.append(pb.GenerateEvent(finished=self._finished))
        self._tokens, self._finished = [], None
        return events


def _describe(attempt: Attempt, finished: pb.Finished) -> None:
    finished.timings.CopyFrom(attempt.timings)
    finished.hit_tokens = attempt.hit_tokens
    finished.recomputed_blocks = attempt.recomputed_blocks
    finished.planned_prefill_side_blocks = attempt.plan.prefill_side_blocks
    finished.planned_decode_side_blocks = attempt.plan.decode_side_blocks
    finished.prefill_node, finished.prefill_engine = attempt.prefill.node_id, attempt.prefill.engine
    finished.decode_node, finished.decode_engine = attempt.decode.node_id, attempt.decode.engine
