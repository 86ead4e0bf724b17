"""What NIXL itself does not promise: what is stopped has ended, and what is taken back is not touched."""

import asyncio
import fcntl
import gc
import socket
import time

import numpy as np
import pytest

from dualpath_jax.transfer import Failure, Lane, NixlTransport
from dualpath_jax.transfer.nixl_agent import INFINIBAND
from dualpath_jax.transfer.nixl_lane import SETTLE_S
from dualpath_jax.transfer.nixl_transport import SIOCGIFADDR, default_options, interface_of
from tests.transfer.conftest import LANE_DSCP, needs_nixl
from tests.transfer.testbed import MIB, failure_of, pieces, random_bytes

pytestmark = needs_nixl


@pytest.fixture
def kind():
    return "nixl"


def address_of_interface(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            return socket.inet_ntoa(fcntl.ioctl(asking, SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))[20:24])
        except OSError:
            return None


async def put_under_way(transport):
    """Waits until NIXL carries a write of this transport."""
    while not any(lane._agent and lane._agent._puts for lane in transport._sending.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def some_landed(memory):
    while not memory.any():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_memory_that_was_taken_back_from_a_frozen_writer_is_not_touched_when_it_wakes(
    make_transport, peer_process
):
    receiver, other = await make_transport(), await make_transport()
    memory, others = np.zeros(64 * MIB, np.uint8), np.zeros(64 * MIB, np.uint8)
    handle, others_handle = receiver.register([memory.data]), receiver.register([others.data])
    writer = peer_process()
    writer.write_on(receiver.address, handle)
    await some_landed(memory)
    writer.freeze()
    source = random_bytes(64 * MIB)
    beside = asyncio.create_task(
        other.write(receiver.address, pieces(source, others_handle, MIB), lane=Lane.LOAD, deadline_s=30)
    )
    await put_under_way(other)
    start = time.monotonic()
    await receiver.deregister(handle)
    assert time.monotonic() - start < SETTLE_S + 2
    memory[:] = 7
    # Whoever writes to other memory at that moment does not notice.
    await beside
    assert (others == source).all()
    writer.thaw()
    assert await asyncio.to_thread(writer.outcome) == "REFUSED"
    assert (memory == 7).all()


async def test_memory_that_is_taken_back_in_the_middle_of_a_write_is_not_touched(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory, source = np.zeros(64 * MIB, np.uint8), np.ones(64 * MIB, np.uint8)
    for _ in range(3):
        handle = receiver.register([memory.data])
        task = asyncio.create_task(
            sender.write(receiver.address, pieces(source, handle, 4 * MIB), lane=Lane.LOAD, deadline_s=30)
        )
        await put_under_way(sender)
        await receiver.deregister(handle)
        memory[:] = 7
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        assert result is None or result.failure is Failure.REFUSED
        await asyncio.sleep(0.05)
        assert (memory == 7).all()


async def test_a_write_to_a_peer_that_freezes_ends_at_its_deadline_and_its_source_is_not_read_any_more(
    make_transport, peer_process
):
    sender, other = await make_transport(), await make_transport()
    peer = peer_process(region_bytes=64 * MIB)
    source = np.ones(64 * MIB, np.uint8)
    start = time.monotonic()
    task = asyncio.create_task(
        sender.write(peer.address, pieces(source, peer.handle, 4 * MIB), lane=Lane.LOAD, deadline_s=1)
    )
    await put_under_way(sender)
    peer.freeze()
    memory = np.zeros(64 * MIB, np.uint8)
    beside = asyncio.create_task(
        sender.write(
            other.address, pieces(source[: 64 * MIB], other.register([memory.data]), MIB), lane=Lane.LOAD, deadline_s=30
        )
    )
    assert (await failure_of(task)).failure is Failure.TIMED_OUT
    assert time.monotonic() - start < 1 + SETTLE_S + 1
    await beside
    assert memory.all()
    source[:] = 2
    peer.thaw()
    await asyncio.sleep(0.3)
    assert set(peer.values()) <= {0, 1}
    await sender.write(peer.address, pieces(source, peer.handle, 4 * MIB), lane=Lane.LOAD, deadline_s=30)
    assert peer.values() == [2]


async def test_a_peer_that_is_killed_in_the_middle_of_a_write_fails_it_at_once(make_transport, peer_process):
    sender = await make_transport()
    peer = peer_process(region_bytes=64 * MIB)
    source = np.ones(64 * MIB, np.uint8)
    task = asyncio.create_task(
        sender.write(peer.address, pieces(source, peer.handle, 4 * MIB), lane=Lane.LOAD, deadline_s=60)
    )
    await put_under_way(sender)
    peer.kill()
    start = time.monotonic()
    assert (await failure_of(task)).failure is Failure.PEER_LOST
    assert time.monotonic() - start < 5


async def test_a_writer_that_is_killed_leaves_memory_that_can_be_taken_back(make_transport, peer_process):
    receiver = await make_transport()
    memory = np.zeros(64 * MIB, np.uint8)
    handle = receiver.register([memory.data])
    writer = peer_process()
    writer.write_on(receiver.address, handle)
    await some_landed(memory)
    writer.kill()
    await receiver.deregister(handle)
    memory[:] = 7
    await asyncio.sleep(0.2)
    assert (memory == 7).all()
    assert not receiver._grants._grants


async def test_cancelled_while_nixl_reads_it_the_source_is_free_once_cancellation_has_returned(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory, source = np.zeros(64 * MIB, np.uint8), np.ones(64 * MIB, np.uint8)
    batch = pieces(source, receiver.register([memory.data]), 4 * MIB)
    for _ in range(3):
        source[:] = 1
        task = asyncio.create_task(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=30))
        await put_under_way(sender)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        source[:] = 2
        await asyncio.sleep(0.1)
        assert set(np.unique(memory)) <= {0, 1}


async def test_each_lane_has_an_agent_of_its_own_in_each_direction(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory = np.zeros(MIB, np.uint8)
    batch = pieces(np.ones(MIB, np.uint8), receiver.register([memory.data]), MIB)
    for lane in (Lane.LOAD, Lane.STORE):
        await sender.write(receiver.address, batch, lane=lane, deadline_s=10)
    sending = {lane: agents._agent.name for lane, agents in sender._sending.items()}
    receiving = {lane: agents._agent.name for lane, agents in receiver._grants._lanes.items()}
    assert set(sending) == set(receiving) == {Lane.LOAD, Lane.STORE}
    assert len({*sending.values(), *receiving.values()}) == 4
    assert sender._sending[Lane.STORE]._options["IB_TRAFFIC_CLASS"] == str(LANE_DSCP[Lane.STORE] << 2)


async def test_memory_that_has_gone_is_not_kept_alive_and_its_place_can_be_registered_again(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    for seed in range(70):  # more than an agent may know at a time
        source, memory = random_bytes(MIB, seed), np.zeros(MIB, np.uint8)
        handle = receiver.register([memory.data])
        await sender.write(receiver.address, pieces(source, handle, 32768), lane=Lane.LOAD, deadline_s=10)
        assert (memory == source).all()
        await receiver.deregister(handle)
    del source, memory
    gc.collect()
    known = [*sender._sending[Lane.LOAD]._agent._memory._owners.values()]
    assert sum(owner() is not None for _, owner in known) == 0


async def test_idle_agents_leave_the_processor_alone(make_transport):
    sender, receiver = await make_transport(), await make_transport()
    memory = np.zeros(MIB, np.uint8)
    batch = pieces(np.ones(MIB, np.uint8), receiver.register([memory.data]), MIB)
    await sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10)
    await asyncio.sleep(0.1)
    start = time.process_time()
    await asyncio.sleep(1)
    assert time.process_time() - start < 0.15


def test_ucx_stays_on_the_card_of_the_address_and_off_shared_memory():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None
    assert default_options("127.0.0.1:0") == {"TLS": "tcp", "NET_DEVICES": "lo"}
    assert default_options("[::1]:0") == {"TLS": "tcp", "NET_DEVICES": "lo"}
    assert default_options("192.0.2.77:1") == {"TLS": "^sm"}
    for index, name in socket.if_nameindex():
        address = address_of_interface(name)
        if name != "lo" and address and not INFINIBAND.exists():
            assert index
            assert default_options(f"{address}:0") == {"TLS": "^sm", "NET_DEVICES": name}


async def test_it_works_on_another_address_than_the_loopback_one(make_transport):
    addresses = [address_of_interface(name) for _, name in socket.if_nameindex() if name != "lo"]
    if not any(addresses):
        pytest.skip("this machine has the loopback interface alone")
    bind = f"{next(filter(None, addresses))}:0"
    sender, receiver = await make_transport(bind=bind), await make_transport(bind=bind)
    memory, source = np.zeros(MIB, np.uint8), random_bytes(MIB)
    batch = pieces(source, receiver.register([memory.data]), 32768)
    await sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10)
    assert (memory == source).all()


def test_options_that_ucx_cannot_start_with_are_said():
    async def make():
        NixlTransport(lane_dscp={}, options={"TLS": "no_such_transport"})

    with pytest.raises(RuntimeError, match=r"UCX does not start .*TLS=no_such_transport"):
        asyncio.run(make())
