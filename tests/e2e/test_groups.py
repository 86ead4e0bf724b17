"""Clusters whose nodes have several processes: a process that dies takes its node's incarnation with it."""

import asyncio
import os
import signal
import time

import pytest

import dualpath_jax
from dualpath_jax.launch.lifetime import LOST_GROUP
from tests.cluster.flax_cluster import TINY
from tests.cluster.harness import small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.launch.commands import all_gone, run
from tests.replay.samples import write_trace


def wait_for_new(cluster: dualpath_jax.LocalCluster, node: str, old: dict[str, int]) -> None:
    """Until the node is another incarnation of as many processes, and serves."""
    end = time.monotonic() + 60
    names = [name for name in old if name.partition(".")[0] == node]
    while True:
        now = cluster.processes
        if all(name in now and now[name].pid != old[name] for name in names) and now[node].ready:
            return
        assert time.monotonic() < end, {name: process.last_words() for name, process in now.items()}
        time.sleep(0.05)


def pids(cluster: dualpath_jax.LocalCluster) -> dict[str, int]:
    return {name: process.pid for name, process in cluster.processes.items()}


def test_a_node_that_loses_a_process_comes_back_whole(tmp_path):
    spec = small_spec(tmp_path, processes_per_node=2, scheduling__process_silence_s=6.0)
    with dualpath_jax.LocalCluster(spec) as cluster:
        first = pids(cluster)
        assert set(first) == {"scheduler", "prefill-0", "prefill-0.1", "decode-0", "decode-0.1"}
        prompt = random_prompt(60)
        assert cluster.session().generate(prompt, 10).tokens == expected_tokens(spec, prompt, 10)
        cluster.wait_until_stored()
        followers_leader, leaders_follower = cluster.processes["prefill-0"], cluster.processes["decode-0.1"]
        cluster.kill("prefill-0.1")
        cluster.kill("decode-0")
        wait_for_new(cluster, "prefill-0", first)
        wait_for_new(cluster, "decode-0", first)
        assert followers_leader.status == LOST_GROUP
        assert leaders_follower.status in (LOST_GROUP, -signal.SIGABRT)  # JAX may notice first, and aborts
        result = cluster.session().generate(prompt, 10)
        assert result.tokens == expected_tokens(spec, prompt, 10)
        assert result.hit_tokens == 56  # what is stored outlives the nodes
        last = pids(cluster)
    assert all_gone([*first.values(), *last.values()], deadline_s=0.0)


@pytest.mark.long
@pytest.mark.parametrize("frozen", ["decode-0", "decode-0.1"])
def test_a_process_that_freezes_is_given_up_and_its_requests_go_elsewhere(tmp_path, frozen):
    spec = small_spec(
        tmp_path,
        decode_nodes=2,
        processes_per_node=2,
        scheduling__process_silence_s=5.0,
        engine__fake_seconds_per_token=0.02,
    )
    with dualpath_jax.LocalCluster(spec) as cluster:
        first, prompts = pids(cluster), [random_prompt(60, seed=seed) for seed in range(4)]
        sessions = [(cluster.session(), prompt) for prompt in prompts]

        async def frozen_meanwhile() -> list[dualpath_jax.Generation]:
            running = [asyncio.create_task(session.generate_async(prompt, 60)) for session, prompt in sessions]
            await asyncio.sleep(0.5)
            os.kill(first[frozen], signal.SIGSTOP)
            return await asyncio.gather(*running)

        results = asyncio.run(frozen_meanwhile())
        wait_for_new(cluster, "decode-0", first)
        for prompt, result in zip(prompts, results, strict=True):
            assert result.tokens == expected_tokens(spec, prompt, 60)
        assert max(result.attempts for result in results) > 1
    assert all_gone(first.values(), deadline_s=0.0)


@pytest.mark.long
def test_a_replay_on_nodes_of_two_processes_agrees_with_the_reference(tmp_path):
    shape = {key: value for key, value in TINY.items() if value is not None}
    overrides = [f"--set={key}={list(value) if isinstance(value, tuple) else value}" for key, value in shape.items()]
    trace = write_trace(tmp_path / "trace.jsonl", sessions=3, turns=4, append=12, generate=4)
    ended = run(
        "dualpath-replay",
        *overrides,
        "--set=processes_per_node=2",
        "--set=scheduling.layers_per_group=2",
        "--check_requests=12",
        f"--trace={trace}",
        timeout_s=600,
    )
    assert ended.status == 0, ended.errors
    assert "dualpath agrees with the no-cache reference: 12 requests, 54 tokens" in ended.output
