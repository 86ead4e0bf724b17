"""`dualpath-testbed`: replay a trace on a cluster with networks of its own: namespaces, links with rates, S3."""

import json
import sys
from pathlib import Path

from absl import flags

from dualpath_configs import SpecError
from dualpath_jax.launch.flags import UsageError, run_command
from dualpath_jax.launch.processes import ClusterError, terminated_as_interrupted
from dualpath_jax.qos.commands import NetworkError
from dualpath_jax.replay.main import FAILED, define_replay_flags, inputs, options, replay
from dualpath_jax.replay.run import ModeRun, run_mode
from dualpath_jax.testbed.counters import CardTable, passed
from dualpath_jax.testbed.network import NetworkTestbed
from dualpath_jax.testbed.seaweedfs import StorageServerError

FLAGS = flags.FLAGS
COMPARED = ("basic", "dualpath")
"""There is no oracle: real links let nothing through for nothing."""


def main() -> int:
    """The status of the replay; 2 where the machine has no such networks."""
    terminated_as_interrupted()
    spec, trace = inputs()
    modes = COMPARED if FLAGS.compare else (FLAGS.mode,)
    if "oracle" in modes:
        raise UsageError(f"--mode=oracle: the links of a testbed are real: expected one of {', '.join(COMPARED)}")
    tables = []
    try:
        with NetworkTestbed(spec) as testbed:

            def run(mode: str) -> ModeRun:
                before = testbed.counters()
                done = run_mode(mode, testbed.with_storage(mode), trace, options(testbed.place))
                seconds = done.record.finished_unix_s - done.record.started_unix_s
                counted = passed(before, testbed.counters())
                tables.append(CardTable(mode, counted, seconds, spec.network.snic_bytes_per_s))
                return done

            with testbed.inside():
                status = replay(spec, trace, modes, run)
    except (ClusterError, StorageServerError) as error:
        print(f"dualpath-testbed: {error}", file=sys.stderr)
        return FAILED
    except (NetworkError, SpecError) as error:
        raise UsageError(str(error)) from error
    for table in tables:
        print("", *table.lines(), sep="\n")
    if FLAGS.report:
        cards = {table.mode: table.by_host() for table in tables}
        (Path(FLAGS.report) / "cards.json").write_text(json.dumps(cards, indent=2) + "\n")
    return status


def run() -> None:
    """Entry point of `dualpath-testbed`."""
    define_replay_flags()
    run_command(main)


if __name__ == "__main__":
    run()
