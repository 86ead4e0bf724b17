"""Peers that freeze, die and come back, for every transport."""

import asyncio
import time

import numpy as np

from dualpath_jax.transfer import Failure, Lane, TransferError, peer_stream
from tests.transfer.testbed import MIB, digest, pieces, random_bytes


def whole(source, handle):
    return pieces(source, handle, 32768)


async def outcome(awaitable):
    try:
        await awaitable
    except TransferError as error:
        return error.failure
    return None


async def test_a_peer_process_gets_the_bytes_and_a_frozen_one_ends_at_the_deadline(make_transport, peer_process):
    sender = await make_transport()
    peer = peer_process(region_bytes=32 * MIB)
    source = random_bytes(32 * MIB)
    await sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30)
    assert peer.digest() == digest(source)
    peer.freeze()
    start = time.monotonic()
    assert await outcome(sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=0.5)) is (
        Failure.TIMED_OUT
    )
    assert 0.4 < time.monotonic() - start < 3
    peer.thaw()
    source[:] = 5
    await sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30)
    assert peer.digest() == digest(source)


async def test_a_peer_that_is_frozen_before_the_first_write_ends_it_at_the_deadline(make_transport, peer_process):
    sender = await make_transport()
    peer = peer_process()
    peer.freeze()
    start = time.monotonic()
    batch = whole(np.ones(MIB, np.uint8), peer.handle)
    assert await outcome(sender.write(peer.address, batch, lane=Lane.STORE, deadline_s=0.5)) is Failure.TIMED_OUT
    assert 0.4 < time.monotonic() - start < 3


async def test_a_silent_stream_is_given_up_and_the_next_write_connects_anew(make_transport, peer_process, monkeypatch):
    monkeypatch.setattr(peer_stream, "SILENCE_S", 0.3)
    sender = await make_transport()
    peer = peer_process(region_bytes=32 * MIB)
    source = np.ones(32 * MIB, np.uint8)
    peer.freeze()
    short, long = await asyncio.gather(
        outcome(sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=0.5)),
        outcome(sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=60)),
    )
    assert (short, long) == (Failure.TIMED_OUT, Failure.PEER_LOST)
    peer.thaw()
    await sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30)
    assert peer.digest() == digest(source)


async def test_a_killed_peer_fails_all_its_writes_at_once_and_others_go_on(make_transport, peer_process):
    sender = await make_transport()
    peer, other = peer_process(region_bytes=32 * MIB), peer_process()
    source = np.ones(32 * MIB, np.uint8)
    peer.freeze()
    pending = [
        asyncio.create_task(outcome(sender.write(peer.address, whole(source, peer.handle), lane=lane, deadline_s=60)))
        for lane in (Lane.LOAD, Lane.STORE)
        for _ in range(3)
    ]
    await asyncio.sleep(0.3)
    peer.kill()
    start = time.monotonic()
    assert set(await asyncio.gather(*pending)) == {Failure.PEER_LOST}
    assert time.monotonic() - start < 5
    await sender.write(other.address, whole(source[:MIB], other.handle), lane=Lane.LOAD, deadline_s=30)
    assert other.digest() == digest(source[:MIB])


async def test_a_restarted_peer_on_the_same_port_refuses_the_handles_of_its_former_life(make_transport, peer_process):
    sender = await make_transport()
    peer = peer_process()
    source = random_bytes(MIB)
    await sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30)
    peer.kill()
    again = peer_process(bind=peer.address)
    assert again.address == peer.address
    # The death of the former life may show in the first write after it; the restart needs nobody's help.
    first = await outcome(sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30))
    second = await outcome(sender.write(peer.address, whole(source, peer.handle), lane=Lane.LOAD, deadline_s=30))
    assert first in (Failure.PEER_LOST, Failure.REFUSED)
    assert second is Failure.REFUSED
    assert again.digest() == digest(np.zeros(MIB, np.uint8))
    await sender.write(again.address, whole(source, again.handle), lane=Lane.LOAD, deadline_s=30)
    assert again.digest() == digest(source)
