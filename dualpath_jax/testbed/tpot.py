"""Whether KV disturbs decoding: `python -m dualpath_jax.testbed.tpot` (root; minutes, since nodes compile first).

The decode node is a group of two processes in two namespaces, whose collectives cross their compute cards at every
step. Sessions generate, in turn on one cluster: without KV (`alone`); while KV saturates other hosts' cards, which
costs the machine's cores the same and the decode node's cards nothing (`elsewhere`); and while it saturates the decode
node's cards in both directions, with the lanes, and with the lanes off.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from absl import flags

from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.local import LocalCluster
from dualpath_jax.launch.processes import ClusterError, terminated_as_interrupted
from dualpath_jax.qos.commands import NetworkError
from dualpath_jax.rollout import Client
from dualpath_jax.testbed.helpers import HelperError
from dualpath_jax.testbed.kv_pair import arrived_bytes, start_kv
from dualpath_jax.testbed.network import NetworkTestbed, with_link_rate

FLAGS = flags.FLAGS
FAILED = 1
KV_HOSTS = {
    "alone": (),
    "elsewhere": ("prefill-0", "prefill-0.1"),
    "lanes": ("decode-0", "decode-0.1"),
    "lanes off": ("decode-0", "decode-0.1"),
}
"""Conditions, and between which hosts KV flows."""

PROMPT_TOKENS, TOKENS = 64, 96


def _define_flags() -> None:
    define_config_flags()
    flags.DEFINE_float("link_bytes_per_s", 10e6, "Rate of a compute card.", lower_bound=1e5)
    flags.DEFINE_integer("rounds", 2, "How often each condition is measured.", lower_bound=1)
    flags.DEFINE_integer("sessions", 4, "Sessions that generate at a time.", lower_bound=1)
    flags.DEFINE_string("json_out", "", "File for the figures; empty: the printed lines alone.")
    flags.DEFINE_string("compilation_cache", "", "Folder where compiled programs are kept between runs; empty: none.")


def main() -> int:
    """0: measured; 1: a process did not do its part."""
    terminated_as_interrupted()
    spec = with_link_rate(cluster_from_flags(), FLAGS.link_bytes_per_s)
    spec = spec.model_copy(update={"processes_per_node": 2, "engines_per_node": 2})
    try:
        with NetworkTestbed(spec) as testbed, testbed.inside():
            cluster = LocalCluster(
                testbed.with_storage("kv"), compilation_cache=FLAGS.compilation_cache, place=testbed.place
            )
            with cluster:
                measured = _measure(testbed, cluster.client)
    except (HelperError, ClusterError) as error:
        print(f"tpot: {error}")
        return FAILED
    except NetworkError as error:
        raise UsageError(str(error)) from error
    figures = tpot_figures(measured)
    for condition, row in figures.items():
        print(f"{condition:>9}: " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if FLAGS.json_out:
        Path(FLAGS.json_out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def tpot_figures(measured: Mapping[str, Sequence[np.ndarray]]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of the time per token of each condition's requests, and over those of others."""
    percentiles = {name: np.percentile(np.concatenate(rounds), (50, 99)) for name, rounds in measured.items()}
    return {
        name: {
            "median_ms": float(1e3 * median),
            "p99_ms": float(1e3 * p99),
            "median_over_alone": float(median / percentiles["alone"][0]),
            "median_over_elsewhere": float(median / percentiles["elsewhere"][0]),
            "p99_over_elsewhere": float(p99 / percentiles["elsewhere"][1]),
            "requests": float(sum(map(len, measured[name]))),
        }
        for name, (median, p99) in percentiles.items()
    }


def _measure(testbed: NetworkTestbed, client: Client) -> dict[str, list[np.ndarray]]:
    measured: dict[str, list[np.ndarray]] = {condition: [] for condition in KV_HOSTS}
    asyncio.run(_generate(client, seed=0))  # whatever is done once is done before
    for number in range(FLAGS.rounds):
        for condition, hosts in KV_HOSTS.items():
            testbed.set_lanes(condition != "lanes off")
            with ExitStack() as stack:
                loads = start_kv(stack, testbed, hosts, FLAGS.config) if hosts else []
                before, started = sum(arrived_bytes(loads)), time.monotonic()
                measured[condition].append(asyncio.run(_generate(client, seed=1 + number)))
                rate = (sum(arrived_bytes(loads)) - before) / 2 / (time.monotonic() - started)
                print(f"{condition}: KV {rate / 1e6:.2f} MB/s", flush=True)
    return measured


async def _generate(client: Client, *, seed: int) -> np.ndarray:
    """Seconds per token after the first, of each session's turn."""
    prompts = np.random.default_rng(seed).integers(0, 2048, (FLAGS.sessions, PROMPT_TOKENS))

    async def one(prompt: np.ndarray) -> float:
        done = await client.session().generate_async(prompt.tolist(), TOKENS)
        return (done.timings.end - done.timings.first_token) / (TOKENS - 1)

    return np.array(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def run() -> None:
    """Entry point."""
    _define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
