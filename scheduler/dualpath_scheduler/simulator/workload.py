"""What a simulation replays, as arrays: a request a turn, sessions one after the other."""

from dataclasses import dataclass
from typing import final

import numpy as np

from dualpath_scheduler.workload import Trace


@final
@dataclass(frozen=True)
class Workload:
    """Request `first[s] + t` is turn `t` of session `s`.

    `first` is int64 `[sessions + 1]`; `append_tokens` and `generate_tokens` int32 `[requests]`; `delay_s` float64
    `[requests]`, the tool's time before the turn; `arrival_s` float64 `[sessions]`.
    """

    name: str
    first: np.ndarray
    append_tokens: np.ndarray
    generate_tokens: np.ndarray
    delay_s: np.ndarray
    arrival_s: np.ndarray

    @property
    def sessions(self) -> int:
        return len(self.first) - 1

    @property
    def requests(self) -> int:
        return len(self.append_tokens)

    def prompt_tokens(self) -> np.ndarray:
        """int64 `[requests]`: all earlier appends and generations of the session, and the turn's append."""
        spans = self.append_tokens.astype(np.int64) + self.generate_tokens
        ends = np.cumsum(spans)
        before = np.concatenate([[0], ends])[self.first[:-1]]
        return ends - self.generate_tokens - np.repeat(before, np.diff(self.first))

    def hit_tokens(self, block_tokens: int) -> np.ndarray:
        """int64 `[requests]`: whole blocks of the turn before, of which the last prompt token is never one."""
        prompts = self.prompt_tokens()
        before = prompts - self.append_tokens
        return np.minimum(before, prompts - 1) // block_tokens * block_tokens


def make_workload(
    trace: Trace,
    *,
    agents: int | None = None,
    arrivals_per_s: float | None = None,
    delay_scale: float = 0.0,
    seed: int = 0,
) -> Workload:
    """The sessions of a trace, each run by an agent.

    Args:
        agents: how many sessions; absent: those of the trace. More than the trace has are drawn from it again, each
            time in another order, and get a round of their own in front, so that they share no KV (paper, set-up):
            the trace's mean append and generation.
        arrivals_per_s: sessions start as a Poisson process; absent: as in the trace times `delay_scale`, which is all
            at once where that is 0.
        delay_scale: factor of the tools' times, and of the trace's arrivals.
        seed: of the drawing and of the arrivals.
    """
    rng = np.random.default_rng(seed)
    base = [_lengths(session.turns) for session in trace.sessions]
    wanted = len(base) if agents is None else agents
    everything = np.concatenate(base, axis=1)
    round_in_front = np.array([[max(1.0, round(everything[0].mean()))], [max(1.0, round(everything[1].mean()))], [0.0]])
    again = [np.concatenate([round_in_front, lengths], axis=1) for lengths in base]
    chosen = list(range(min(wanted, len(base))))
    while len(chosen) < wanted:
        chosen.extend(rng.permutation(len(base))[: wanted - len(chosen)].tolist())
    parts = [(base if at < len(base) else again)[index] for at, index in enumerate(chosen)]
    lengths = np.concatenate(parts, axis=1)
    if arrivals_per_s is None:
        arrivals = np.array([trace.sessions[index].arrival_s for index in chosen]) * delay_scale
    else:
        arrivals = np.cumsum(rng.exponential(1 / arrivals_per_s, wanted))
    return Workload(
        name=trace.name,
        first=np.concatenate([[0], np.cumsum([part.shape[1] for part in parts])]).astype(np.int64),
        append_tokens=lengths[0].astype(np.int32),
        generate_tokens=lengths[1].astype(np.int32),
        delay_s=lengths[2] * delay_scale,
        arrival_s=arrivals,
    )


def _lengths(turns: tuple) -> np.ndarray:
    """Of each turn: tokens appended, tokens generated, and the tool's seconds: float64 `[3, turns]`."""
    return np.array([(len(turn.append), len(turn.generate), turn.delay_s) for turn in turns], dtype=np.float64).T
