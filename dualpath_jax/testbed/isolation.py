"""Whether KV disturbs a model's collectives, on links with rates: `python -m dualpath_jax.testbed.isolation` (root).

Two processes of a group, each in a namespace of its own, run an exchange again and again over their compute cards,
while KV saturates the same cards in both directions: never, with the lanes, and with the lanes off. All in one run, in
turn.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from absl import flags

from dualpath_configs import ClusterSpec
from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.processes import terminated_as_interrupted
from dualpath_jax.qos.commands import NetworkError
from dualpath_jax.testbed.counters import passed
from dualpath_jax.testbed.helpers import Helper, HelperError
from dualpath_jax.testbed.isolation_table import CONDITIONS, Measured, isolation_table
from dualpath_jax.testbed.kv_pair import START_S, arrived_bytes, start_kv
from dualpath_jax.testbed.network import NetworkTestbed, with_link_rate

FLAGS = flags.FLAGS
FAILED = 1
COORDINATOR_PORT = 9300
MODEL_LANE = "CNIC out, model"

EXCHANGES = {"prefill": ("all_to_all", 65_536), "decode": ("experts", 8_192)}
"""Of a group of each role: which collective, and how many bytes each process gives to it (prompts; a few tokens)."""


def _define_flags() -> None:
    define_config_flags()
    flags.DEFINE_enum("role", "prefill", sorted(EXCHANGES), "Whose exchange it is, of a prefill or a decode group.")
    flags.DEFINE_float("link_bytes_per_s", 10e6, "Rate of a compute card.", lower_bound=1e5)
    flags.DEFINE_float("seconds", 10.0, "How long each measurement takes.", lower_bound=0.5)
    flags.DEFINE_integer("rounds", 2, "How often each condition is measured.", lower_bound=1)
    flags.DEFINE_string("json_out", "", "File for the figures; empty: the table alone.")


def main() -> int:
    """0: measured; 1: a process did not do its part."""
    terminated_as_interrupted()
    spec = _spec(cluster_from_flags())
    measured: dict[str, list[Measured]] = {condition: [] for condition in CONDITIONS}
    try:
        with NetworkTestbed(spec, storage=False) as testbed:
            for _ in range(FLAGS.rounds):
                for condition in CONDITIONS:
                    measured[condition].append(measure(testbed, condition, FLAGS.role, FLAGS.seconds))
    except HelperError as error:
        print(f"isolation: {error}")
        return FAILED
    except NetworkError as error:
        raise UsageError(str(error)) from error
    table = isolation_table(measured, FLAGS.link_bytes_per_s)
    print(*table.lines(), sep="\n")
    if FLAGS.json_out:
        Path(FLAGS.json_out).write_text(json.dumps(table.figures(), indent=2) + "\n")
    return 0


def _spec(spec: ClusterSpec) -> ClusterSpec:
    """Two nodes of each role, one card each."""
    shape = {"prefill_nodes": 2, "decode_nodes": 2, "engines_per_node": 1}
    return with_link_rate(spec, FLAGS.link_bytes_per_s).model_copy(update=shape)


def measure(testbed: NetworkTestbed, condition: str, role: str, seconds: float) -> Measured:
    """One condition, once. Raises HelperError, and NetworkError."""
    hosts = (f"{role}-0", f"{role}-1")
    testbed.set_lanes(condition != "lanes off")
    with ExitStack() as stack:
        files = tempfile.TemporaryDirectory(dir=testbed.namespaces.folder)
        folder = Path(stack.enter_context(files))
        loads = [] if condition == "alone" else start_kv(stack, testbed, hosts, FLAGS.config)
        sent, before, started = arrived_bytes(loads), testbed.counters(), time.monotonic()
        _run_probes(stack, testbed, folder, hosts, EXCHANGES[role], seconds)
        elapsed = time.monotonic() - started
        arrived = sum(arrived_bytes(loads)) - sum(sent)
        counted = passed(before, testbed.counters())
        times = json.loads((folder / "probe.json").read_text())["times_s"]
    model = sum(counted[host, MODEL_LANE] for host in hosts)
    return Measured(times, elapsed, arrived / 2, model / 2)


def _run_probes(
    stack: ExitStack,
    testbed: NetworkTestbed,
    folder: Path,
    hosts: Sequence[str],
    exchange: tuple[str, int],
    seconds: float,
) -> None:
    coordinator = f"{testbed.host(hosts[0]).address('cnic')}:{COORDINATOR_PORT}"
    collective, size_bytes = exchange
    flags = [f"--coordinator_address={coordinator}", f"--num_processes={len(hosts)}", f"--collective={collective}"]
    flags += [f"--bytes={size_bytes}", f"--seconds={seconds}", f"--json_out={folder / 'probe.json'}"]
    probes = []
    for index, name in enumerate(hosts):
        command, log = testbed.namespaces.command(name), folder / f"probe-{name}.log"
        mine = [*flags, f"--process_id={index}"]
        probe = Helper(f"the probe of {name}", command, "dualpath_jax.testbed.collective_probe", mine, log)
        probes.append(stack.enter_context(probe))
    for probe in probes:
        probe.end(deadline_s=seconds + START_S)


def run() -> None:
    """Entry point."""
    _define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
