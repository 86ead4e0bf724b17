"""How long an engine group computes: lines through timed passes and steps, for a simulation of this machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from dualpath_configs import MeasuredSpec
from dualpath_jax.engine.attention_time import PROBE_TOKENS
from dualpath_jax.engine.base import DecodeRequest, EngineGroup, PrefillChunk, Sampling

ROUNDS = 5
"""Times that everything is timed; the median counts. A round goes through all points, so that a machine that is busy
for a while spoils a round and not a point."""

STEPS = 4
"""Decode steps that a point takes in a round."""

_LEAST_S = 1e-6


@final
@dataclass(frozen=True)
class Point:
    """What is timed: on each of `engines`, `count` new tokens (a pass) or requests (a step) on `context` tokens."""

    engines: int
    count: int
    context: int


@final
@dataclass
class Times:
    """Wall-clock and CPU seconds of one point, a value a run."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def take(self, run: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)

    @property
    def median_s(self) -> float:
        return max(statistics.median(self.wall_s), _LEAST_S)

    @property
    def cores(self) -> float:
        return sum(self.cpu_s) / max(sum(self.wall_s), _LEAST_S)


Measured = dict[Point, Times]


def measure_compute(
    engine: EngineGroup,
    layer_groups: Sequence[tuple[int, int]],
    *,
    widths: Sequence[int],
    max_context_tokens: int,
    shared_cores: int | None,
) -> MeasuredSpec:
    """Times passes and steps on all engines of a group at once, and on one alone, and fits.

    `layer_groups` are those that prefill runs, `widths` the widths that passes are padded to; all of it has been warmed
    up. `shared_cores` are the cores that this group and those of other nodes compute on; None: it has its own. Takes
    some seconds.
    """
    passes, steps = _pass_points(engine, widths), _step_points(engine, max_context_tokens)
    for _ in range(ROUNDS):
        for point, times in passes.items():
            _time_pass(engine, layer_groups, point, times)
        for point, times in steps.items():
            _time_steps(engine, point, times)
    batch_s, pair_s = _fit_passes(passes, widths, engine.engines)
    step_s, request_s, token_s = _fit_steps(steps, engine.engines)
    tokens = min(PROBE_TOKENS, max(widths))
    cached = _longest(engine)
    width = next(place for place, width in enumerate(widths) if width >= tokens)
    return MeasuredSpec(
        batch_widths=tuple(widths),
        batch_s=tuple(batch_s),
        pair_s=pair_s,
        batch_alone=_alone(passes, engine.engines, lambda p: (batch_s[widths.index(p.count)], pair_s * _pairs(p))),
        batch_cores=_cores(passes),
        step_s=step_s,
        step_request_s=request_s,
        step_token_s=token_s,
        step_alone=_alone(steps, engine.engines, lambda p: (step_s, p.count * (request_s + p.context * token_s))),
        step_cores=_cores(steps),
        shared_cores=shared_cores,
        tokens_per_s=(cached + tokens) / (batch_s[width] + pair_s * _pairs(Point(1, tokens, cached))),
    )


def _longest(engine: EngineGroup) -> int:
    """Stored tokens of the longest pass that is timed: half of what fits, whole blocks."""
    block = engine.layout.block_tokens
    return max(block, engine.limits.prefix_tokens // 2 // block * block)


def _pass_points(engine: EngineGroup, widths: Sequence[int]) -> Measured:
    block, longest = engine.layout.block_tokens, _longest(engine)
    contexts = sorted({0, longest // 4 // block * block, longest // 2 // block * block})
    points = [Point(engine.engines, width, cached) for width in widths for cached in contexts]
    return {point: Times() for point in (*points, Point(1, max(widths), max(contexts)))}


def _step_points(engine: EngineGroup, max_context_tokens: int) -> Measured:
    block, slots = engine.layout.block_tokens, engine.limits.decode_slots
    room = min(max_context_tokens, engine.limits.decode_tokens // slots) - STEPS - 2
    contexts = sorted({block, max(block, room // 2 // block * block)})
    points = [Point(engine.engines, count, context) for count in sorted({1, slots}) for context in contexts]
    return {point: Times() for point in (*points, Point(1, slots, max(contexts)))}


def _time_pass(engine: EngineGroup, groups: Sequence[tuple[int, int]], point: Point, times: Times) -> None:
    tokens = np.arange(point.count) % engine.vocab_size
    chunks = [PrefillChunk("timed", e, tokens, point.context, Sampling()) for e in range(point.engines)]
    pass_ = engine.plan_prefill(chunks)
    stage = engine.new_stage(max(last - first for first, last in groups))

    def run() -> None:
        engine.start_prefill(pass_)
        for first, last in groups:
            engine.run_layers(first, last, stage)
        engine.finish_prefill()

    times.take(run)


def _time_steps(engine: EngineGroup, point: Point, times: Times) -> None:
    blocks = [np.zeros(engine.layout.block_bytes, np.uint8)] * engine.layout.blocks_of(point.context)
    requests = [
        DecodeRequest(f"timed {e} {n}", e, point.context, 1, STEPS + 2)
        for e in range(point.engines)
        for n in range(point.count)
    ]
    slots = [engine.insert(request, blocks) for request in requests]
    try:
        engine.step()  # the first one after an insertion finds caches cold
        for _ in range(STEPS):
            times.take(engine.step)
    finally:
        for slot in slots:
            engine.release(slot)


def _pairs(point: Point) -> float:
    return point.count * point.context + point.count * (point.count + 1) / 2


def _fit_passes(passes: Measured, widths: Sequence[int], engines: int) -> tuple[list[float], float]:
    """Seconds of a pass of each width without attention, and of a pair."""
    together = {point: times for point, times in passes.items() if point.engines == engines}
    rows = [[*(float(point.count == width) for width in widths), _pairs(point)] for point in together]
    *batch_s, pair_s = _fit(rows, [times.median_s for times in together.values()])
    return [max(seconds, _LEAST_S) for seconds in batch_s], max(pair_s, 0.0)


def _fit_steps(steps: Measured, engines: int) -> tuple[float, float, float]:
    """Seconds of a step, of a request more on each engine, and of a token of context more on each."""
    together = {point: times for point, times in steps.items() if point.engines == engines}
    rows = [[1.0, float(point.count), float(point.count * point.context)] for point in together]
    step_s, request_s, token_s = _fit(rows, [times.median_s for times in together.values()])
    return max(step_s, _LEAST_S), max(request_s, 0.0), max(token_s, 0.0)


def _fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Least squares of relative errors, so that short passes count as much as long ones."""
    weights = 1 / np.array(seconds)
    solution = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(seconds)), rcond=None)[0]
    return [float(value) for value in solution]


def _alone(measured: Measured, engines: int, parts: Callable[[Point], tuple[float, float]]) -> float:
    """Of what depends on an engine's work, the part that it takes where the others have none.

    `parts` of a point: the seconds that do not depend on it, and those that do with equal work on all engines.
    """
    if engines == 1:
        return 1.0
    point, times = next((point, times) for point, times in measured.items() if point.engines == 1)
    fixed_s, work_s = parts(point)
    share = (times.median_s - fixed_s) / work_s if work_s else 1.0
    return min(1.0, max(1 / engines, share))


def _cores(measured: Measured) -> float:
    return max(0.01, statistics.median(times.cores for times in measured.values()))
