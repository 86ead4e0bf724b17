"""Timing an engine group: on a clock that moves as a known machine would, and on the real engine."""

from types import SimpleNamespace

import numpy as np
import pytest

from dualpath_jax.engine import compute_time
from dualpath_jax.engine.base import EngineLimits
from dualpath_jax.engine.compute_time import measure_compute
from tests.engine.flax_testbed import ALL, BLOCK, cluster_spec, engine_group

WIDTHS = (64, 256)


class Machine:
    """Two engines whose computing takes what these lines say, on a clock of its own.

    The engine with most work takes `alone` of what both together would, and the other one's work adds the rest.
    """

    engines, vocab_size = 2, 100
    limits = EngineLimits(prefill_tokens=256, prefix_tokens=8192, decode_slots=4, decode_tokens=65_536)
    layout = SimpleNamespace(block_tokens=64, block_bytes=64, blocks_of=lambda tokens: -(-tokens // 64))

    def __init__(self, alone: float) -> None:
        self.alone, self.now_s, self.cpu_s = alone, 0.0, 0.0
        self.slots: dict[int, object] = {}

    def _compute(self, fixed_s: float, work_s: list[float], cores: float) -> None:
        seconds = fixed_s + self.alone * max(work_s) + (1 - self.alone) * min(work_s)
        self.now_s += seconds
        self.cpu_s += seconds * cores

    def plan_prefill(self, chunks):
        return chunks

    def new_stage(self, layers):
        return layers

    def start_prefill(self, chunks) -> None:
        work = [0.0, 0.0]
        for chunk in chunks:
            new = len(chunk.tokens)
            work[chunk.engine] = 1e-6 * (new * chunk.start + new * (new + 1) / 2)
        self._compute({64: 0.04, 256: 0.1}[new], work, cores=1.5)

    def run_layers(self, first, last, stage) -> None:
        assert last - first <= stage

    def finish_prefill(self) -> None:
        pass

    def insert(self, request, blocks):
        assert len(blocks) == self.layout.blocks_of(request.prompt_tokens)
        self.slots[len(self.slots)] = request
        return len(self.slots) - 1

    def step(self) -> None:
        work = [0.0, 0.0]
        for request in self.slots.values():
            work[request.engine] += 1e-4 + 1e-6 * request.prompt_tokens
        self._compute(0.01, work, cores=1.25)

    def release(self, slot) -> None:
        del self.slots[slot]


@pytest.mark.parametrize("alone", [0.5, 0.75, 1.0])
def test_the_lines_of_a_known_machine_are_found(monkeypatch, alone):
    machine = Machine(alone)
    clock = SimpleNamespace(perf_counter=lambda: machine.now_s, process_time=lambda: machine.cpu_s)
    monkeypatch.setattr(compute_time, "time", clock)
    found = measure_compute(machine, ((0, 2), (2, 4)), widths=WIDTHS, max_context_tokens=8192, shared_cores=2)
    assert found.batch_widths == WIDTHS
    assert found.batch_s == pytest.approx((0.04, 0.1))
    assert found.pair_s == pytest.approx(1e-6)
    assert (found.step_s, found.step_request_s, found.step_token_s) == pytest.approx((0.01, 1e-4, 1e-6))
    assert (found.batch_alone, found.step_alone) == pytest.approx((alone, alone))
    assert (found.batch_cores, found.step_cores, found.shared_cores) == pytest.approx((1.5, 1.25, 2))
    assert found.tokens_per_s == pytest.approx((4096 + 64) / (0.04 + 1e-6 * (64 * 4096 + 64 * 65 / 2)))
    assert machine.slots == {}


@pytest.mark.long  # it compiles, and what it times must be steady
def test_the_real_engine_is_timed_and_left_as_it_was():
    engine, spec = engine_group(), cluster_spec()
    found = measure_compute(
        engine,
        ALL,
        widths=spec.engine.prefill_token_buckets,
        max_context_tokens=spec.max_context_tokens,
        shared_cores=None,
    )
    assert found.batch_widths == spec.engine.prefill_token_buckets
    assert 0 < found.batch_s[0] < 10
    assert 0 < found.step_s < 10
    assert 0.5 <= found.batch_alone <= 1
    assert all(engine.can_insert(e, BLOCK * spec.engine.decode_pages // spec.engine.decode_slots) for e in range(2))
    assert np.isfinite(found.tokens_per_s)
