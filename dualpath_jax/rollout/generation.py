"""What a client gets back of one request."""

from dataclasses import dataclass

from dualpath_jax.engine.base import TokenChoice
from dualpath_scheduler.service import scheduler_pb2 as pb


@dataclass(frozen=True)
class RequestTimings:
    """Wall-clock seconds since the epoch; 0 where the request never got there.

    `read_start` and `read_end` span both sides' storage reads, `assigned` is when the read plan was fixed.
    """

    arrival: float
    assigned: float
    read_start: float
    read_end: float
    prefill_start: float
    first_token: float
    end: float


@dataclass(frozen=True)
class Generation:
    """The outcome of one request: its tokens, how they came about, and how long each stage took."""

    choices: tuple[TokenChoice, ...]
    timings: RequestTimings
    prompt_tokens: int
    hit_tokens: int
    prefill_side_blocks: int
    decode_side_blocks: int
    recomputed_blocks: int
    prefill_node: str
    prefill_engine: int
    decode_node: str
    decode_engine: int
    attempts: int

    @property
    def tokens(self) -> list[int]:
        """The generated token ids."""
        return [choice.token for choice in self.choices]

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each generated token."""
        return [choice.logprob for choice in self.choices]


def token_choice(token: pb.Token) -> TokenChoice:
    """A generated position, from the protocol's form."""
    return TokenChoice(
        token.token,
        token.logprob,
        (token.top_token_1, token.top_token_2),
        (token.top_logprob_1, token.top_logprob_2),
    )


def generation(choices: list[TokenChoice], finished: pb.Finished) -> Generation:
    """The outcome, from the protocol's last event."""
    timings = finished.timings
    return Generation(
        choices=tuple(choices),
        timings=RequestTimings(
            arrival=timings.arrival,
            assigned=timings.assigned,
            read_start=timings.read_start,
            read_end=timings.read_end,
            prefill_start=timings.prefill_start,
            first_token=timings.first_token,
            end=timings.end,
        ),
        prompt_tokens=finished.prompt_tokens,
        hit_tokens=finished.hit_tokens,
        prefill_side_blocks=finished.planned_prefill_side_blocks,
        decode_side_blocks=finished.planned_decode_side_blocks,
        recomputed_blocks=finished.recomputed_blocks,
        prefill_node=finished.prefill_node,
        prefill_engine=finished.prefill_engine,
        decode_node=finished.decode_node,
        decode_engine=finished.decode_engine,
        attempts=finished.attempts,
    )
