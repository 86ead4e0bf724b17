"""A cluster put together by hand: each role a command of its own, in any order, ended by signals."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualpath_configs import ClusterSpec
from dualpath_configs.resolved import write_resolved
from dualpath_jax.rollout import Client
from tests.cluster.harness import small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.launch.commands import Started, check_refused, ended_in_the_end, run
from tests.servers import free_port


def _start(folder: Path, spec: ClusterSpec, role: str, scheduler: str) -> Started:
    write_resolved(spec, folder / f"{role}.json")
    flags = [f"--role={role}", f"--config={folder / role}.json"]
    if role == "scheduler":
        return Started(folder, role, "dualpath-launch", *flags, f"--bind={scheduler}")
    return Started(folder, role, "dualpath-launch", *flags, f"--node_id=my-{role}", f"--scheduler={scheduler}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_roles_started_one_by_one_serve_and_end(tmp_path, number):
    spec = small_spec(tmp_path)
    scheduler = f"127.0.0.1:{free_port()}"
    roles = [_start(tmp_path, spec, role, scheduler) for role in ("decode", "prefill", "scheduler")]  # in any order
    with ended_in_the_end(*roles):
        with Client(scheduler) as client:
            client.wait_ready(1, 1, deadline_s=30)
            prompt = random_prompt(50)
            result = client.session().generate(prompt, 8)
            assert result.tokens == expected_tokens(spec, prompt, 8)
            assert (result.prefill_node, result.decode_node) == ("my-prefill", "my-decode")
            if number is signal.SIGTERM:
                _a_node_of_other_weights_is_refused(tmp_path, scheduler)
        for role in roles:  # decode first, the scheduler last
            role.signal(number)
            ended = role.end(timeout_s=15)
            assert ended.status == 0, ended.errors
            assert "Traceback" not in ended.errors


def _a_node_of_other_weights_is_refused(folder: Path, scheduler: str) -> None:
    write_resolved(small_spec(folder, weights_seed=7), folder / "other.json")
    ended = run(
        "dualpath-launch",
        "--role=decode",
        "--node_id=other",
        f"--config={folder / 'other.json'}",
        f"--scheduler={scheduler}",
    )
    check_refused(ended, "node 'other' is refused: weights_id is 'seed:7', but ", "have 'seed:0'")


def test_nodes_say_that_their_scheduler_is_gone_and_come_back_when_it_does(tmp_path):
    spec = small_spec(tmp_path)
    scheduler = f"127.0.0.1:{free_port()}"
    roles = {role: _start(tmp_path, spec, role, scheduler) for role in ("scheduler", "prefill", "decode")}
    with ended_in_the_end(*roles.values()), Client(scheduler) as client:
        client.wait_ready(1, 1, deadline_s=30)
        prompt = random_prompt(50)
        client.session().generate(prompt, 8)
        roles["scheduler"].process.kill()
        roles["scheduler"].process.wait()
        again = _start(tmp_path, spec, "scheduler", scheduler)
        with ended_in_the_end(again):
            client.wait_ready(1, 1, deadline_s=30)
            result = client.session().generate(prompt, 8)
            assert result.tokens == expected_tokens(spec, prompt, 8)
            assert result.hit_tokens == 48  # what is on disk is found again


STUBBORN = """
import asyncio, time
from dualpath_jax.launch.lifetime import until_stopped

async def serve():
    print("serving", flush=True)
    await asyncio.to_thread(time.sleep, 30)  # as loading weights would

asyncio.run(until_stopped(serve(), with_stdin=False))
"""


def test_a_second_interrupt_ends_what_the_first_one_waits_for():
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
        assert process.stderr.read() == b""
