"""One simulated run of an experiment: what it is made of, its identity, and its result."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

from dualpath_configs import SimulatedSpec, load_simulated
from dualpath_scheduler.simulator.outcome import outcome_of
from dualpath_scheduler.simulator.paper.scaled import scaled
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import Workload, make_workload
from dualpath_scheduler.workload import PAPER_TRACES, Trace, load_trace

_ANY_VOCAB = 1000

Result = Mapping[str, float | None]
"""The fields of an `Outcome`."""


@final
@dataclass(frozen=True)
class Run:
    """A preset with overrides of its spec, and sessions of one of the paper's traces; all at once without a rate.

    With `longest_tokens` sessions end there; it matters where lengths are scaled.
    """

    preset: str
    mode: str
    max_length: str
    agents: int
    overrides: tuple[tuple[str, object], ...] = ()
    arrivals_per_s: float | None = None
    append_scale: float = 1.0
    generate_scale: float = 1.0
    longest_tokens: int | None = None

    @cached_property
    def spec(self) -> SimulatedSpec:
        return load_simulated(self.preset, {**dict(self.overrides), "mode": self.mode})

    @property
    def work(self) -> list[object]:
        """What makes up the workload, as JSON."""
        lengths = (self.append_scale, self.generate_scale, self.longest_tokens)
        return [_trace_digest(self.max_length), self.agents, self.arrivals_per_s, *lengths]

    @cached_property
    def key(self) -> str:
        """Equal for runs with one spec, whatever preset and overrides it is made of, and one workload.

        Another version of the simulator's code is not another run.
        """
        return key_of(self.spec, self.work)

    @property
    def name(self) -> str:
        """What a progress line says."""
        parts = [self.preset, self.max_length, f"{self.agents} agents", self.mode]
        parts += [f"{key}={value}" for key, value in self.overrides]
        parts += [] if self.arrivals_per_s is None else [f"{self.arrivals_per_s:.3g}/s"]
        scales = (self.append_scale, self.generate_scale)
        parts += [] if scales == (1.0, 1.0) else ["append x{:g}, generation x{:g}".format(*scales)]
        return ", ".join(parts)

    @property
    def expected_requests(self) -> float:
        """About how much there is to simulate."""
        return self.agents * PAPER_TRACES[_trace_name(self.max_length)].turns

    def workload(self) -> Workload:
        work = make_workload(_trace(self.max_length), agents=self.agents, arrivals_per_s=self.arrivals_per_s)
        scales = {"append": self.append_scale, "generate": self.generate_scale}
        return scaled(work, **scales, longest_tokens=self.longest_tokens)


def key_of(spec: SimulatedSpec, work: list[object]) -> str:
    """`Run.key`, from what a ledger has of a run."""
    return hashlib.sha256(json.dumps([spec.model_dump(mode="json"), work], sort_keys=True).encode()).hexdigest()


def execute(run: Run) -> tuple[Result, float]:
    """The result, and the seconds of a processor that it took."""
    began = time.process_time()
    simulation = Simulation(run.spec, run.workload())
    simulation.run()
    return dataclasses.asdict(outcome_of(simulation)), time.process_time() - began


def _trace_name(max_length: str) -> str:
    return f"paper-{max_length.lower()}"


@lru_cache
def _trace(max_length: str) -> Trace:
    return load_trace(_trace_name(max_length), vocab_size=_ANY_VOCAB)


@lru_cache
def _trace_digest(max_length: str) -> str:
    """Of the lengths of the trace's sessions, and of how more are drawn from them."""
    trace = _trace(max_length)
    work = make_workload(trace, agents=2 * len(trace.sessions))
    arrays = (work.first, work.append_tokens, work.generate_tokens)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
