"""What the simulator's commands share: flags of the workload, values of flags, and a bar for a run."""

import argparse
import sys
import tomllib
from collections.abc import Callable
from typing import final

from tqdm import tqdm

from dualpath_configs import SimulatedSpec, SpecError, simulated_names
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import Workload, make_workload
from dualpath_scheduler.workload import Trace, TraceError, load_trace

USAGE_ERROR, INTERRUPTED = 2, 130
_ANY_VOCAB = 2**31


@final
class UsageError(Exception):
    """What is wrong with an argument, in one line."""


def guarded(name: str, work: Callable[[], int]) -> int:
    """The exit status of a command's work; what is wrong with its arguments is one line on standard error."""
    try:
        return work()
    except (UsageError, SpecError, TraceError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """The cluster, and what `trace_of` and `workload_of` read."""
    add = parser.add_argument
    add("--config", default="27b_1p1d", help=f"{', '.join(simulated_names())}, or a TOML file")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the spec")
    add("--trace", default="paper-64k", help="as for dualpath-replay: a name, or a file in Mooncake's format")
    add("--agents", type=positive_int, help="sessions; more than the trace has are drawn from it again")
    add("--arrivals_per_s", type=positive, help="sessions that start a second; absent: all at once")
    add("--scale", type=positive, default=1.0, help="factor of the trace's lengths")
    add("--max_turns", type=positive_int, help="of a session")
    add("--delay_scale", type=float, default=0.0, help="factor of the trace's arrival times and tool delays")
    add("--seed", type=int, default=0)


def trace_of(flags: argparse.Namespace) -> Trace:
    """Raises TraceError."""
    return load_trace(flags.trace, vocab_size=_ANY_VOCAB, scale=flags.scale, max_turns=flags.max_turns, seed=flags.seed)


def workload_of(flags: argparse.Namespace, trace: Trace, arrivals_per_s: float | None) -> Workload:
    """The trace's sessions as the flags want them, arriving at this rate instead of the flags'."""
    return make_workload(
        trace,
        agents=flags.agents,
        arrivals_per_s=arrivals_per_s,
        delay_scale=flags.delay_scale,
        seed=flags.seed,
    )


def simulate(spec: SimulatedSpec, workload: Workload, label: str) -> Simulation:
    """Runs to the end, with a bar of requests on a terminal's standard error."""
    simulation = Simulation(spec, workload)
    with tqdm(total=workload.requests, desc=label, unit="req", file=sys.stderr, disable=None, leave=False) as bar:
        simulation.run(progress=bar.update)
    return simulation


def parse_override(text: str, flag: str) -> tuple[str, object]:
    """`key=value` with a value as TOML writes it, or a bare word, which is a string. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise UsageError(f"{flag} {text}: expected key=value, such as hardware.snic_bytes_per_s=25e9")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def positive(text: str) -> float:
    """A finite number above 0, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a finite number above 0")
    return value


def positive_int(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return value
