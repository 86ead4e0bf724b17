"""Sessions with the statistics of the paper's traces (table of the evaluation set-up), from a seed."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dualpath_scheduler.workload.mooncake import MOONCAKE_TOKENS_PER_ID, turn_from_ids
from dualpath_scheduler.workload.trace import SessionTrace, Trace, TraceError, Turn, check_at_least_one, check_positive


@dataclass(frozen=True)
class PaperTrace:
    """Means over trajectories: of their turns, of their mean append, generation and prompt, and of their total."""

    max_tokens: int
    turns: float
    append_tokens: float
    generate_tokens: float
    total_tokens: float
    context_tokens: float


PAPER_TRACES = {
    "paper-32k": PaperTrace(32_768, 60, 608, 148, 28_639, 17_183),
    "paper-48k": PaperTrace(49_152, 106, 474, 172, 42_607, 25_120),
    "paper-64k": PaperTrace(65_536, 157, 429, 176, 55_958, 32_721),
}
PAPER_SESSIONS = 500

_JITTER = 0.3
_SPREAD = 0.8
_LEAST_TURN_TOKENS = 112
"""Tokens that a turn of any session has on average: a call, its result, and the markers around them."""
_MAX_SEED = 2**31


@dataclass(frozen=True)
class _Shape:
    """Lengths of one session, in tokens: its total, its first prompt, and all it generates."""

    turns: int
    total: float
    first_prompt: float
    generated: float


def generate_trace(
    preset: str,
    *,
    scale: float = 1.0,
    sessions: int = PAPER_SESSIONS,
    max_turns: int | None = None,
    seed: int = 0,
    vocab_size: int,
    first_prompt_tokens: float | None = None,
    generation_scale: float | None = None,
) -> Trace:
    """A trace of `sessions` sessions; nothing is hit across them.

    The paper's means are of trajectories that differ: turns × (append + generation) is more than the mean total, since
    every trajectory ends near the longest length, after many short turns or a few long ones. So a session's total and
    its number of turns are drawn independently: the total as max · u^p (most end near the longest), the turns
    log-normal, wide enough for the mean of total ÷ turns to come out; but no session has so many that they would have
    less than `_LEAST_TURN_TOKENS` on average: by the paper's times with few agents, its longest sessions are about in
    proportion to the longest length. The context's mean then fixes the first prompt. Totals and turns are drawn one
    from each of `sessions` strata, which holds the means close for few sessions.

    Args:
        preset: a name of `PAPER_TRACES`.
        scale: multiplies lengths, not turns; no length falls below 1 token.
        max_turns: sessions end after so many turns.
        seed: other seeds give other sessions with other tokens.
        first_prompt_tokens: the mean length of first prompts, instead of the preset's; later turns keep theirs.
        generation_scale: multiplies generations instead of `scale`.

    Raises:
        TraceError: for an argument that is out of range.
    """
    if preset not in PAPER_TRACES:
        raise TraceError(f"preset = {preset!r}: expected one of {', '.join(PAPER_TRACES)}")
    if not 0 <= seed < _MAX_SEED:
        raise TraceError(f"seed = {seed}: expected at least 0 and less than {_MAX_SEED}")
    check_at_least_one(sessions=sessions, max_turns=max_turns, vocab_size=vocab_size)
    check_positive(scale=scale, generation_scale=generation_scale, first_prompt_tokens=first_prompt_tokens)
    generated_by = scale if generation_scale is None else generation_scale
    made = []
    next_id = seed << 32
    for index, shape in enumerate(_shapes(PAPER_TRACES[preset], sessions, np.random.default_rng(seed))):
        rng = np.random.default_rng((seed, index))
        lengths = _turn_lengths(shape, rng, scale, generated_by)
        if first_prompt_tokens is not None:
            lengths[0, 0] = max(1, round(first_prompt_tokens * _jitter(rng)))
        turns = _turns(lengths[:max_turns], next_id, vocab_size)
        next_id = turns[-1].append.ids[-1] + 1
        made.append(SessionTrace(f"{preset}-{seed}-{index:04d}", turns))
    return Trace(preset, tuple(made))


def _shapes(paper: PaperTrace, sessions: int, rng: np.random.Generator) -> list[_Shape]:
    per_turn = paper.append_tokens + paper.generate_tokens
    # Log-normal n: E[n] · E[1/n] = exp(spread²), and with independent totals the mean per turn is E[total] · E[1/n].
    spread = math.sqrt(math.log(paper.turns * per_turn / paper.total_tokens))
    middle = math.log(paper.turns) - spread**2 / 2
    # E[u^p] = 1 / (p + 1).
    power = paper.max_tokens / paper.total_tokens - 1
    # With even turns, the mean prompt is (first prompt + total - one generation) / 2.
    first_share = (2 * paper.context_tokens - paper.total_tokens + paper.generate_tokens) / paper.total_tokens
    generated_share = paper.generate_tokens / per_turn
    shapes = []
    for of_turns, of_total in zip(_strata(sessions, rng), _strata(sessions, rng), strict=True):
        total = paper.max_tokens * of_total**power
        turns = min(math.exp(middle + spread * NormalDist().inv_cdf(of_turns)), total / _LEAST_TURN_TOKENS)
        shapes.append(
            _Shape(
                turns=max(2, round(turns)),
                total=total,
                first_prompt=total * first_share * _jitter(rng),
                generated=total * generated_share * _jitter(rng),
            )
        )
    return shapes


def _strata(count: int, rng: np.random.Generator) -> list[float]:
    """`count` numbers in (0, 1), one from each of as many equal parts, shuffled."""
    within = 1e-6 + (1 - 2e-6) * rng.random(count)
    return list((rng.permutation(count) + within) / count)


def _jitter(rng: np.random.Generator) -> float:
    """A factor of mean 1."""
    return 1 + _JITTER * (2 * float(rng.random()) - 1)


def _turn_lengths(shape: _Shape, rng: np.random.Generator, append_scale: float, generate_scale: float) -> np.ndarray:
    """Tokens appended and generated by each turn, `[turns, 2]`, each at least 1."""
    appended = (shape.total - shape.generated - shape.first_prompt) * append_scale
    first = max(1, round(shape.first_prompt * append_scale))
    appends = [first, *_split(appended, shape.turns - 1, rng)]
    return np.stack([appends, _split(shape.generated * generate_scale, shape.turns, rng)], axis=1)


def _turns(lengths: np.ndarray, next_id: int, vocab_size: int) -> tuple[Turn, ...]:
    """Turns of these lengths `[turns, 2]`, with ids from `next_id` on."""
    turns = []
    for append, generate in lengths.tolist():
        ids = range(next_id, next_id + -(-append // MOONCAKE_TOKENS_PER_ID))
        next_id = ids.stop
        turns.append(turn_from_ids(tuple(ids), append, generate, MOONCAKE_TOKENS_PER_ID, vocab_size))
    return tuple(turns)


def _split(total: float, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`total` in `parts` whole numbers of at least 1, of very different sizes."""
    weights = np.exp(_SPREAD * rng.standard_normal(parts))
    ends = np.round(np.cumsum(weights) / weights.sum() * max(0.0, total - parts)).astype(np.int64)
    return np.diff(ends, prepend=0) + 1
