"""Work for an engine group of any kind, and groups of processes to give it to."""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import DecodeRequest, EngineGroup, PrefillChunk, Sampling, TokenChoice
from dualpath_jax.engine.fake import FakeEngineGroup
from dualpath_jax.engine.group.follower import Follower
from dualpath_jax.engine.group.leader import LeaderEngineGroup
from dualpath_jax.engine.group.link import GroupLost, LinkSettings
from dualpath_jax.engine.group.service import LeaderService
from tests.engine.flax_testbed import full_blocks, run_pass
from tests.servers import free_port

LAYERS = 3
MAX_TOKENS = 12
CALL_DSCP, PIECE_DSCP = 10, 8


@dataclass
class Generated:
    """What a group said, by engine: KV bytes, first choices, those of each step, and an exported block."""

    kv: list[bytes]
    choices: list[TokenChoice | None]
    steps: list[dict[int, TokenChoice]]
    blocks: list[bytes]


def generate(engine: EngineGroup) -> Generated:
    """On every engine: prefill in two chunks, the second after the first's KV, each in two layer groups; decode."""
    size, random, every = engine.layout.block_tokens, np.random.default_rng(0), range(engine.engines)
    done, slots = Generated([], [], [], []), []
    first = [random.integers(0, 96, 2 * size) for _ in every]
    prefixes = [one.kv for one in run_pass(engine, _chunks(first, start=0, sampling=None), [None] * len(every), GROUPS)]
    rest = [random.integers(0, 96, size + 1 + e) for e in every]
    passed = run_pass(engine, _chunks(rest, start=2 * size, sampling=Sampling()), prefixes, GROUPS)
    for e, (prefix, one) in enumerate(zip(prefixes, passed, strict=True)):
        kv = np.concatenate([prefix, one.kv], axis=1)
        sampling = Sampling(0.7, seed=2**40 + e) if e % 2 else Sampling()
        request = DecodeRequest(f"r{e}", e, kv.shape[1], one.choice.token, MAX_TOKENS, sampling)
        slots.append(engine.insert(request, full_blocks(engine, kv)))
        done.kv.append(kv.tobytes())
        done.choices.append(one.choice)
    while step := engine.step():
        done.steps.append({slot.engine: choice for slot, choice in step})
        assert len(done.steps[-1]) == len(step)
    for slot in slots:
        done.blocks.append(engine.export_block(slot, 3).tobytes())
        engine.release(slot)
    return done


GROUPS = ((0, 1), (1, LAYERS))


def _chunks(tokens: list[np.ndarray], *, start: int, sampling: Sampling | None) -> list[PrefillChunk]:
    return [PrefillChunk(f"r{e}", e, ids, start, sampling) for e, ids in enumerate(tokens)]


@dataclass
class FakeGroup:
    """A leader and its followers in this process, and what was said of those that are lost."""

    engines: LeaderEngineGroup
    service: LeaderService
    lost: list[str]


def part(spec: ClusterSpec, process: int) -> FakeEngineGroup:
    """One process's share of fake engines."""
    share = spec.engines_per_node // spec.processes_per_node
    return FakeEngineGroup(spec, local_engines=range(process * share, (process + 1) * share))


@contextlib.contextmanager
def fake_group(spec: ClusterSpec, *follower_engines: EngineGroup, call_deadline_s: float = 20.0) -> Iterator[FakeGroup]:
    """Followers with the engines given, or with their shares."""
    lost: list[str] = []
    settings = LinkSettings(b"config", silence_s=5.0, on_lost=lost.append, call_dscp=CALL_DSCP, piece_dscp=PIECE_DSCP)
    service = LeaderService("127.0.0.1", settings, processes=spec.processes_per_node)
    followers, threads = [], []
    for process in range(1, spec.processes_per_node):
        engine = follower_engines[process - 1] if follower_engines else part(spec, process)
        followers.append(Follower(service.addresses, settings, process=process))
        threads.append(threading.Thread(target=_follow, args=(followers[-1], engine)))
        threads[-1].start()
    remote = service.followers(spec.engines_per_node, deadline_s=10)
    engines = LeaderEngineGroup(part(spec, 0), remote, call_deadline_s=call_deadline_s)
    try:
        yield FakeGroup(engines, service, lost)
    finally:
        engines.close()
        service.close()
        for follower in followers:
            follower.close()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)


def _follow(follower: Follower, engine: EngineGroup) -> None:
    with contextlib.suppress(GroupLost):
        follower.follow(engine)


@dataclass
class FlaxProcesses:
    """Processes of a group on the Flax engine (`group_process.py`); the first one leads."""

    folder: Path
    processes: list["subprocess.Popen[bytes]"]

    def generated(self, *, deadline_s: float) -> Generated:
        """What the leader came to, as soon as it says so."""
        result, end = self.folder / "generated", time.monotonic() + deadline_s
        while not result.exists():
            for index, process in enumerate(self.processes):
                assert process.poll() is None, f"process {index} ended with {process.returncode}: {self.said(index)}"
            assert time.monotonic() < end, [self.said(index) for index in range(len(self.processes))]
            time.sleep(0.05)
        return pickle.loads(result.read_bytes())

    def said(self, index: int) -> str:
        return (self.folder / f"process-{index}.err").read_text()


@contextlib.contextmanager
def flax_processes(folder: Path, *, engines: int, processes: int) -> Iterator[FlaxProcesses]:
    """Started; none of them survives the block."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    script, port = Path(__file__).with_name("group_process.py"), free_port()
    started = []
    try:
        for index in range(processes):
            command = [sys.executable, script, str(index), str(processes), str(engines), str(port), str(folder)]
            with (folder / f"process-{index}.err").open("wb") as errors:
                started.append(subprocess.Popen(command, stdout=errors, stderr=errors, env=environment))
        yield FlaxProcesses(folder, started)
    finally:
        for process in started:
            process.kill()
            process.wait()
