"""Emulated cards: exact in the long run, the most urgent first, no credit for idle time."""

import asyncio
import time

import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import Lane, Link, NodeCards
from tests.transfer.testbed import now, virtual_time

KB = 1000


async def elapsed(awaitable):
    start = now()
    await awaitable
    return now() - start


@virtual_time
async def test_the_rate_is_exact_whatever_the_timers_do():
    link = Link(20e6, 1)
    asyncio.get_running_loop().late_s = 0.007  # two chunks' time
    took = await elapsed(asyncio.gather(*(link.send(250 * KB) for _ in range(40))))
    assert took == pytest.approx(0.5, rel=0.03)
    assert link.total_bytes == 10_000 * KB
    assert link.busy_s == pytest.approx(0.5)


@pytest.mark.parametrize("block_bytes", [20 * KB, 1000 * KB])
@virtual_time
async def test_a_backlog_of_small_and_of_large_transfers_gets_the_whole_rate(block_bytes):
    link = Link(20e6, 1)
    took = await elapsed(asyncio.gather(*(link.send(block_bytes) for _ in range(8000 * KB // block_bytes))))
    assert took == pytest.approx(0.4, rel=0.03)


@virtual_time
async def test_one_after_the_other_loses_nothing_as_long_as_the_burst_covers_the_gaps():
    link = Link(20e6, 262_144)

    async def one_by_one():
        for _ in range(40):
            await link.send(250 * KB)

    assert await elapsed(one_by_one()) == pytest.approx(0.5, rel=0.03)


@virtual_time
async def test_idle_time_gives_no_credit_beyond_the_burst():
    link = Link(10e6, 200 * KB)
    await link.send(10 * KB)
    await asyncio.sleep(0.3)  # worth 3 MB
    assert await elapsed(link.send(200 * KB)) < 0.01
    assert await elapsed(link.send(1000 * KB)) == pytest.approx(0.1, abs=0.015)


@virtual_time
async def test_urgent_transfers_overtake_at_the_next_chunk_in_order_of_lane_and_need():
    link = Link(10e6, 1)
    order = []

    async def send(name, nbytes, lane, need):
        await link.send(nbytes, lane=lane, need=need)
        order.append(name)

    start = now()
    waiting = [
        asyncio.create_task(send(name, 500 * KB, lane, need))
        for name, lane, need in [
            ("store", Lane.STORE, ()),
            ("layer 5", Lane.LOAD, (5,)),
            ("layer 2", Lane.LOAD, (2,)),
            ("layer 2 again", Lane.LOAD, (2,)),
        ]
    ]
    await asyncio.sleep(0.03)
    await send("model", 50 * KB, Lane.MODEL, ())
    assert now() - start < 0.06
    await asyncio.gather(*waiting)
    assert order == ["model", "layer 2", "layer 2 again", "layer 5", "store"]


@virtual_time
async def test_a_cancelled_transfer_leaves_the_wire_to_the_others():
    link = Link(10e6, 1)
    waiting = [asyncio.create_task(link.send(1000 * KB)) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in waiting[:2]:
        task.cancel()
    start = now()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert now() - start == pytest.approx(0.1, abs=0.02)
    assert 1400 * KB <= link.total_bytes <= 1600 * KB
    assert link.busy_s == pytest.approx(link.total_bytes / 10e6)


@virtual_time
async def test_without_a_rate_it_counts_and_never_waits_but_lets_others_run():
    link = Link(None, 1)
    ran = []
    other = asyncio.create_task(asyncio.sleep(0, ran.append(1)))
    took = await elapsed(link.send(10**12))
    await other
    assert took < 0.05
    assert ran
    assert (link.total_bytes, link.busy_s) == (10**12, 0.0)
    assert sum(link.samples.values()) == 10**12


async def test_samples_say_when_bytes_passed():
    link = Link(10e6, 1, sample_s=0.1)
    start = time.time()
    await link.send(4000 * KB)
    samples = dict(link.samples)
    assert sum(samples.values()) == 4000 * KB
    assert min(samples) == pytest.approx(start / 0.1, abs=1.1)
    inner = sorted(samples)[1:-1]
    assert inner
    for bucket in inner:
        assert samples[bucket] == pytest.approx(1000 * KB, rel=0.1)


@virtual_time
async def test_nothing_is_sent_at_once_and_a_rate_must_be_positive():
    assert await elapsed(Link(1.0, 1).send(0)) < 0.05
    with pytest.raises(ValueError, match="0 bytes/s: expected a positive rate"):
        Link(0, 1)


def test_cards_are_free_in_the_oracle():
    network = NetworkSpec(snic_bytes_per_s=1e6, cnic_bytes_per_s=1e6)
    assert not NodeCards(network, engines=2).storage_read.free
    cards = NodeCards(network, engines=2, free=True)
    assert all(link.free for link in (cards.storage_read, cards.storage_write, *cards.compute_send))
    assert len(cards.compute_receive) == 2
