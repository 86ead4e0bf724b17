"""`dualpath-plan`: what limits a cluster of this shape, and which split of its nodes is best for a workload.

The table and the range of P/D are the paper's analysis; below them stands what the simulator makes of each split of
the nodes. Exit status: 0; 2 with one line on standard error where an argument is wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from dualpath_configs import load_simulated
from dualpath_scheduler.simulator.flags import (
    UsageError,
    add_workload_flags,
    guarded,
    parse_override,
    positive_int,
    simulate,
    trace_of,
    workload_of,
)
from dualpath_scheduler.simulator.plan.best import simulated_splits
from dualpath_scheduler.simulator.plan.mix import mix_of
from dualpath_scheduler.simulator.plan.report import Plan, as_json, as_text

NAME = "dualpath-plan"


def run() -> NoReturn:
    """The command `dualpath-plan`."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status; SystemExit for `--help` and for arguments that do not parse."""
    flags = _parser().parse_args(arguments)
    return guarded(NAME, lambda: _show(flags))


def _show(flags: argparse.Namespace) -> int:
    plan = _plan(flags)
    print(json.dumps(as_json(plan)) if flags.json else as_text(plan))
    return 0


def _plan(flags: argparse.Namespace) -> Plan:
    spec = load_simulated(flags.config, dict(parse_override(text, "--set") for text in flags.set))
    nodes = flags.nodes or spec.prefill_nodes + spec.decode_nodes
    if nodes < 2:
        raise UsageError(f"--nodes {nodes}: expected at least 2, one of each role")
    workload = workload_of(flags, trace_of(flags), flags.arrivals_per_s)
    mix = mix_of(workload, spec.block_tokens)
    splits = [] if flags.table_only else simulated_splits(spec, workload, nodes, simulate)
    return Plan(flags.config, spec, workload, mix, splits)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__, allow_abbrev=False)
    add_workload_flags(parser)
    add = parser.add_argument
    add("--nodes", type=positive_int, help="nodes to split into prefill and decode ones; absent: those of the spec")
    add("--table_only", action="store_true", help="simulate nothing")
    add("--json", action="store_true", help="one JSON object instead of text")
    return parser
