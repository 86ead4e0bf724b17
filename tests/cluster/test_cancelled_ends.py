"""An attempt that is cancelled while it ends gives back all the same what it held."""

import asyncio

import pytest

from dualpath_jax.cluster.prefill_node import PrefillNode
from dualpath_jax.transfer import GrpcTransport
from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import random_prompt

PROMPT = random_prompt(45)


@pytest.fixture
def small(tmp_path):
    return small_spec(tmp_path, network__transport="grpc")


async def _free(cluster, node):
    async with asyncio.timeout(10):
        while cluster.nodes[node].services.arena.stats.free < cluster.spec.host_buffer_blocks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_prefill_that_is_cancelled_while_its_sends_end_frees_its_slots(small, monkeypatch):
    ending = asyncio.Event()

    async def end_slowly(node, job):
        ending.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(PrefillNode, "_end_sends", end_slowly)
    async with running(small) as cluster:
        request = asyncio.create_task(cluster.generate(PROMPT, 3))
        await ending.wait()
        (job,) = cluster.nodes["prefill-0"].jobs
        job.cancel()
        await _free(cluster, "prefill-0")
        assert len((await request).tokens) == 3


async def test_slots_rest_until_their_region_is_gone_whoever_cancels(small, monkeypatch):
    closing, gone = asyncio.Event(), asyncio.Event()
    deregister = GrpcTransport.deregister

    async def deregister_slowly(transport, handle):
        if transport is cluster.nodes["decode-0"].services.transport:
            closing.set()
            await gone.wait()
        await deregister(transport, handle)

    monkeypatch.setattr(GrpcTransport, "deregister", deregister_slowly)
    async with running(small) as cluster:
        request = asyncio.create_task(cluster.generate(PROMPT, 3))
        await closing.wait()
        decode = cluster.nodes["decode-0"]
        (job,) = decode.jobs
        job.cancel()
        await asyncio.wait([job.task])
        stats = decode.services.arena.stats
        assert (stats.reserved, stats.quarantined) == (0, 6)
        gone.set()
        await _free(cluster, "decode-0")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def test_an_attempt_is_cancelled_once(small, monkeypatch):
    ended = []

    async def end_in_a_while(node, job):
        await asyncio.sleep(0.2)
        ended.append(job.label)

    monkeypatch.setattr(PrefillNode, "_end_sends", end_in_a_while)
    async with running(small) as cluster:
        monkeypatch.setattr(cluster.nodes["prefill-0"].services.traffic, "send", lambda *_, **__: asyncio.sleep(60))
        request = asyncio.create_task(cluster.generate(PROMPT, 3))
        async with asyncio.timeout(10):
            while not (jobs := list(cluster.nodes["prefill-0"].jobs)) or not jobs[0].sends:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(3):
            jobs[0].cancel()
            await asyncio.sleep(0.02)
        await asyncio.wait([jobs[0].task])
        assert ended == [jobs[0].label]
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
