"""A leader and its followers in one process, on fake engines: the group answers as one engine group would."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import DecodeRequest, EngineGroup, PrefillChunk, Sampling
from dualpath_jax.engine.fake import FakeEngineGroup
from dualpath_jax.engine.group.follower import Follower
from dualpath_jax.engine.group.leader import LeaderEngineGroup
from dualpath_jax.engine.group.link import GroupLost
from dualpath_jax.engine.group.service import LeaderService
from tests.cluster.harness import small_spec
from tests.engine.flax_testbed import full_blocks, run_pass

DIGEST = b"config"


@dataclass
class Group:
    """The leader's engines, and what was said of processes that are lost."""

    engines: LeaderEngineGroup
    service: LeaderService
    followers: list[Follower] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def spec_of(tmp_path, *, engines: int, processes: int, **more: object) -> ClusterSpec:
    return small_spec(tmp_path, engines_per_node=engines, processes_per_node=processes, **more)


def part(spec: ClusterSpec, process: int) -> FakeEngineGroup:
    share = spec.engines_per_node // spec.processes_per_node
    return FakeEngineGroup(spec, local_engines=range(process * share, (process + 1) * share))


@contextlib.contextmanager
def group_of(spec: ClusterSpec, *, call_deadline_s: float = 20.0, silence_s: float = 5.0) -> Iterator[Group]:
    lost: list[str] = []
    settings = {"config_digest": DIGEST, "silence_s": silence_s, "on_lost": lost.append}
    service = LeaderService("127.0.0.1", processes=spec.processes_per_node, **settings)
    followers, threads = [], []
    for process in range(1, spec.processes_per_node):
        follower = Follower(service.address, process=process, **settings)
        followers.append(follower)
        threads.append(threading.Thread(target=_follow, args=(follower, part(spec, process))))
        threads[-1].start()
    remote = service.followers(spec.engines_per_node, deadline_s=10)
    engines = LeaderEngineGroup(part(spec, 0), remote, call_deadline_s=call_deadline_s)
    try:
        yield Group(engines, service, followers, lost)
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


def generate(engine: EngineGroup, spec: ClusterSpec) -> list[object]:
    """Prefill, with a stored prefix, and decode on all engines; everything that came out."""
    size, found = spec.block_tokens, []
    random = np.random.default_rng(0)
    kv = {}
    for first, chunk in ((True, 3 * size), (False, size + 3)):
        chunks = [
            PrefillChunk(f"r{e}", e, random.integers(0, 97, chunk + e), 0 if first else 3 * size, Sampling())
            for e in range(spec.engines_per_node)
        ]
        prefixes = [None if first else kv[e][:, : 3 * size] for e in range(spec.engines_per_node)]
        done = run_pass(engine, chunks, prefixes, groups=((0, 1), (1, 3)))
        kv = {e: one.kv for e, one in enumerate(done)}
        found += [[one.choice for one in done], [one.kv.tobytes() for one in done]]
    for e, one in enumerate(done):
        whole = np.concatenate([np.zeros((3, 3 * size, one.kv.shape[2]), np.uint8), one.kv], axis=1)
        request = DecodeRequest(f"r{e}", e, whole.shape[1], one.choice.token, 20, Sampling(0.5, seed=2**40))
        slot = engine.insert(request, full_blocks(engine, whole))
        found.append(slot)
    while results := engine.step():
        found.append(sorted(results, key=lambda result: result[0].engine))
    found += [engine.export_block(slot, 4).tobytes() for slot in found if hasattr(slot, "serial")]
    return found


@pytest.mark.parametrize(("engines", "processes"), [(2, 2), (4, 2), (8, 4)])
def test_a_group_of_processes_answers_as_one_of_one_process(tmp_path, engines, processes):
    spec = spec_of(tmp_path, engines=engines, processes=processes)
    with group_of(spec) as group:
        assert generate(group.engines, spec) == generate(FakeEngineGroup(spec), spec)
    assert group.lost == []
