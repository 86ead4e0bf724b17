"""A cluster of real processes on the fake engine: kills, restarts, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import dualpath_jax
from tests.cluster.harness import small_spec
from tests.cluster.oracle import expected_tokens, random_prompt


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def _gone(pids: list[int], *, deadline_s: float = 15.0) -> bool:
    end = time.monotonic() + deadline_s
    while any(map(_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(_alive, pids))


def test_a_cluster_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = small_spec(tmp_path, storage__url="")
    with dualpath_jax.LocalCluster(spec) as cluster:
        pids = [process.pid for process in cluster.processes.values()]
        prompt = random_prompt(40)
        assert cluster.session().generate(prompt, 6).tokens == expected_tokens(spec, prompt, 6)
        assert len(pids) == 3
    assert _gone(pids, deadline_s=0.0)
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import sys, time
import dualpath_jax
from tests.cluster.harness import small_spec
from pathlib import Path
with dualpath_jax.LocalCluster(small_spec(Path("unused"), storage__url="")) as cluster:
    print(*(process.pid for process in cluster.processes.values()), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_however_the_parent_ends_its_processes_end_and_its_files_go(tmp_path, number):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        os.kill(parent.pid, number)
        parent.wait(30)
    assert _gone(pids)
    end = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_node_of_two_loses_nothing(tmp_path):
    spec = small_spec(tmp_path, prefill_nodes=2, decode_nodes=2, engine__fake_seconds_per_token=0.004)
    prompts = [random_prompt(90, seed=i) for i in range(8)]

    async def killed_meanwhile(cluster: dualpath_jax.LocalCluster) -> list[dualpath_jax.Generation]:
        running = [asyncio.create_task(cluster.session().generate_async(p, 30)) for p in prompts]
        await asyncio.sleep(0.3)
        cluster.kill("prefill-0")
        await asyncio.sleep(0.3)
        cluster.kill("decode-1")
        return await asyncio.gather(*running)

    with dualpath_jax.LocalCluster(spec) as cluster:
        results = asyncio.run(killed_meanwhile(cluster))
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == expected_tokens(spec, prompt, 30)
    assert max(result.attempts for result in results) > 1


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_the_only_node_of_a_role_killed_fails_with_its_name(tmp_path, name):
    spec = small_spec(tmp_path, engine__fake_seconds_per_token=0.02)

    async def killed_meanwhile(cluster: dualpath_jax.LocalCluster) -> None:
        running = asyncio.create_task(cluster.session().generate_async(random_prompt(90), 60))
        await asyncio.sleep(0.3)
        cluster.kill(name)
        await running

    with (
        dualpath_jax.LocalCluster(spec) as cluster,
        pytest.raises(dualpath_jax.RequestFailed, match=f"node {name} died"),
    ):
        asyncio.run(killed_meanwhile(cluster))


def test_a_session_goes_on_from_storage_after_a_full_restart(tmp_path):
    spec = small_spec(tmp_path)
    history: list[int] = []
    for life in range(3):
        with dualpath_jax.LocalCluster(spec) as cluster:
            for turn in range(2):
                append = random_prompt(20, seed=10 * life + turn)
                session = cluster.session()
                result = session.generate([*history, *append], 10)
                assert result.tokens == expected_tokens(spec, [*history, *append], 10)
                if history:
                    assert result.hit_tokens == (len(history) - 1) // 8 * 8
                history += [*append, *result.tokens]
                cluster.wait_until_stored()


def test_weights_of_another_seed_or_version_never_hit(tmp_path):
    prompt = random_prompt(60)
    with dualpath_jax.LocalCluster(small_spec(tmp_path)) as cluster:
        cluster.session().generate(prompt, 4)
        cluster.wait_until_stored()
        assert cluster.session().generate(prompt, 4).hit_tokens == 56
    for change in ({"weights_seed": 1}, {"weights_version": 1}):
        with dualpath_jax.LocalCluster(small_spec(tmp_path, **change)) as cluster:
            assert cluster.session().generate(prompt, 4).hit_tokens == 0


def test_a_cluster_that_does_not_come_up_says_who_and_why(tmp_path):
    folder = tmp_path / "kv"
    folder.write_text("not a folder")
    with pytest.raises(dualpath_jax.ClusterError, match=r"scheduler ended with status 2: .*kv"):
        dualpath_jax.LocalCluster(small_spec(tmp_path)).__enter__()


def test_memory_storage_is_refused(tmp_path):
    with pytest.raises(ValueError, match="processes share no memory"):
        dualpath_jax.LocalCluster(small_spec(tmp_path, storage__url="memory://x"))


def test_a_session_takes_one_turn_at_a_time_and_keeps_its_history(tmp_path):
    spec = small_spec(tmp_path, engine__fake_seconds_per_token=0.01)
    with dualpath_jax.LocalCluster(spec) as cluster:
        session = cluster.session()

        async def two_at_once() -> None:
            first = asyncio.create_task(session.generate_async([1, 2, 3], 10))
            await asyncio.sleep(0.05)
            with pytest.raises(RuntimeError, match="a turn of this session is running"):
                await session.generate_async([4], 1)
            await first

        asyncio.run(two_at_once())
        assert session.history == (1, 2, 3, *expected_tokens(spec, [1, 2, 3], 10))
        with pytest.raises(dualpath_jax.InvalidRequest):
            session.generate([97], 1)
        assert len(session.history) == 13
