"""Nodes of several processes, started by hand or by Slurm: they meet, serve, and end together."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dualpath_configs.resolved import write_resolved
from dualpath_jax.rollout import Client
from tests.cluster.harness import small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.launch.commands import Started, ended_in_the_end, run
from tests.servers import free_port

NODE = ["--role=decode", "--node_id=a", "--set=engine.kind=fake", "--set=storage.url=file:///x", "--scheduler=h:1"]


@pytest.mark.parametrize("process", [pytest.param(0, marks=pytest.mark.long), 1])
def test_processes_that_do_not_meet_end_in_time_with_a_line(process):
    coordinator = f"127.0.0.1:{free_port()}"
    place = [f"--coordinator_address={coordinator}", "--num_processes=2", f"--process_id={process}"]
    ended = run("dualpath-launch", *NODE, *place, "--initialization_timeout=1")
    assert ended.status == 2
    assert f"not all processes of this node have met at {coordinator} within 1 s: expected" in ended.errors
    assert "Traceback" not in ended.errors


def test_several_processes_that_nothing_started_together_are_a_line():
    ended = run("dualpath-launch", *NODE, "--set=processes_per_node=2")
    assert ended.status == 2
    assert "expected Slurm, a Kubernetes indexed job, or --coordinator_address" in ended.errors
    assert "Traceback" not in ended.errors


DETECTED = """
import jax
from dualpath_jax.launch.distributed import join_group
from dualpath_jax.launch.platform import configure_jax
configure_jax("cpu", devices=1, join=lambda: join_group(None, timeout_s=60))
print(jax.process_index(), jax.process_count(), len(jax.devices()))
"""


def test_slurm_gives_each_process_its_place():
    job = random.randrange(4096)
    slurm = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    local = {"JAX_COORDINATOR_BIND_ADDRESS": f"127.0.0.1:{61440 + job}"}  # else it listens everywhere
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | slurm | local
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DETECTED],
            env=environment | {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=90)[0].splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == ["0 2 2", "1 2 2"]


def _start(folder: Path, role: str, scheduler: str, *flags: str) -> Started:
    spec = small_spec(folder)
    write_resolved(spec, folder / f"{role}.json")
    own = [f"--bind={scheduler}"] if role == "scheduler" else [f"--node_id={role}", f"--scheduler={scheduler}"]
    return Started(
        folder,
        f"{role}{''.join(flags[-1:])}",
        "dualpath-launch",
        f"--role={role}",
        f"--config={folder / role}.json",
        *own,
        *flags,
    )


def test_a_node_of_two_processes_serves_and_ends_when_all_are_told_to(tmp_path):
    scheduler = f"127.0.0.1:{free_port()}"
    place = [f"--coordinator_address=127.0.0.1:{free_port()}", "--num_processes=2"]
    node = [_start(tmp_path, "prefill", scheduler, *place, f"--process_id={index}") for index in (1, 0)]
    others = [_start(tmp_path, role, scheduler) for role in ("decode", "scheduler")]
    with ended_in_the_end(*node, *others):
        with Client(scheduler) as client:
            client.wait_ready(1, 1, deadline_s=60)
            prompt = random_prompt(50)
            assert client.session().generate(prompt, 8).tokens == expected_tokens(small_spec(tmp_path), prompt, 8)
        for process in [*node, *others]:
            process.signal(signal.SIGTERM)
        for process in [*node, *others]:
            ended = process.end(timeout_s=20)
            assert ended.status == 0, ended.errors
            assert "Traceback" not in ended.errors
