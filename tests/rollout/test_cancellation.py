"""A caller that goes away frees everything that its request held, wherever the request stood."""

import asyncio
import contextlib

import pytest

from dualpath_jax.rollout import Client
from tests.cluster.harness import Cluster, running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt

PROMPT = random_prompt(150)


def _held(cluster: Cluster) -> list[tuple[str, object]]:
    """What the nodes have of any request."""
    held = []
    for name, node in cluster.nodes.items():
        stats, queues = node.services.arena.stats, node.queues()
        held += [(name, job.label) for job in node.jobs]
        held += [(name, stats)] if stats.reserved or stats.quarantined else []
        held += [(name, queues)] if queues.read_q_tokens or any(e.seq or e.tok for e in queues.engines) else []
    return held


async def _holds_nothing(cluster: Cluster) -> None:
    """Waits until no node and no queue has anything of a request; buffers rest while the device still reads them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while _held(cluster) or (await cluster.client.describe()).running_requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (_held(cluster), (await cluster.client.describe()).running_requests) == ([], 0)


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.25])
async def test_a_cancelled_generation_ends_on_the_cluster(tmp_path, after_s):
    # Reading the prompt's 18 blocks of 1,120 bytes takes 0.1 s, prefill of the rest and decoding more.
    spec = small_spec(
        tmp_path,
        engine__fake_seconds_per_token=0.002,
        engine__decode_slots=1,
        network__snic_bytes_per_s=200e3,
        network__burst_bytes=1024,
    )
    async with running(spec) as cluster:
        await cluster.generate(PROMPT, 1)
        await _holds_nothing(cluster)
        client = await asyncio.to_thread(Client, cluster.address)
        try:
            session = client.session()
            tasks = [asyncio.create_task(client.session().generate_async(PROMPT, 100)) for _ in range(3)]
            tasks.append(asyncio.create_task(session.generate_async(PROMPT, 100)))
            await asyncio.sleep(after_s)
            for task in tasks:
                assert task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends)
            await _holds_nothing(cluster)
            assert session.history == ()
            # The session goes on, and so does the cluster, whose engines have one slot each.
            async with asyncio.timeout(10):
                result = await session.generate_async(PROMPT, 3)
            assert result.tokens == expected_tokens(spec, PROMPT, 3)
        finally:
            await asyncio.to_thread(client.close)


async def test_a_caller_that_times_out_leaves_nothing(tmp_path):
    spec = small_spec(tmp_path, engine__fake_seconds_per_token=0.004)
    async with running(spec) as cluster:
        client = await asyncio.to_thread(Client, cluster.address)
        with contextlib.closing(client):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.session().generate_async(PROMPT, 100)
            await _holds_nothing(cluster)
