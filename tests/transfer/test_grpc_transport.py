"""What only the gRPC transport promises: marked lanes, bounded memory, a shared server."""

import asyncio
import socket

import grpc
import numpy as np
import pytest

from dualpath_jax.transfer import Failure, GrpcTransport, Lane, RegionWrite, wire
from dualpath_jax.transfer.endpoint import send_whole, stop_server
from dualpath_jax.transfer.outbound import WINDOW_BYTES
from tests.transfer.conftest import LANE_DSCP
from tests.transfer.testbed import MIB, Gate, failure_of, pieces


def marks_towards(capture, port):
    """The DSCPs of captured TCP packets with payload towards a port."""
    seen = set()
    while True:
        try:
            packet = capture.recv(1 << 16)[14:]  # after the Ethernet header
        except BlockingIOError:
            return seen
        header = 4 * (packet[0] & 15)
        towards = int.from_bytes(packet[header + 2 : header + 4], "big")
        if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP and towards == port and len(packet) > 1000:
            seen.add(packet[1] >> 2)


async def test_the_packets_of_a_lane_carry_its_mark():
    try:
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    except (PermissionError, AttributeError):
        pytest.skip("capturing packets needs root on Linux")
    sender, receiver = GrpcTransport(lane_dscp=LANE_DSCP), GrpcTransport(lane_dscp={})
    await receiver.start()
    memory = np.zeros(MIB, np.uint8)
    batch = pieces(np.ones(MIB, np.uint8), receiver.register([memory.data]), MIB)
    with capture:
        capture.bind(("lo", 0))
        capture.setblocking(False)
        capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MIB)
        for lane, expected in [(Lane.LOAD, LANE_DSCP[Lane.LOAD]), (Lane.STORE, LANE_DSCP[Lane.STORE]), (Lane.MODEL, 0)]:
            await sender.write(receiver.address, batch, lane=lane, deadline_s=10)
            # The first packets of a connection precede its settings.
            marks = marks_towards(capture, int(receiver.address.rpartition(":")[2]))
            assert marks == {expected}, lane
    await sender.close()
    await receiver.close()


async def test_what_waits_at_a_gate_is_bounded_by_the_window():
    gate = Gate(0)
    sender, receiver = GrpcTransport(lane_dscp={}), GrpcTransport(lane_dscp={}, gate=gate)
    await receiver.start()
    memory = np.zeros(64 * MIB, np.uint8)
    batch = pieces(np.ones(64 * MIB, np.uint8), receiver.register([memory.data]), MIB)
    task = asyncio.create_task(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=30))
    await gate.waiting.wait()
    await asyncio.sleep(0.3)
    (stream,) = sender._endpoint._streams.values()
    assert WINDOW_BYTES <= stream._sent_bytes <= WINDOW_BYTES + wire.FRAME_BYTES
    gate.open()
    await task
    assert memory.all()
    await sender.close()
    await receiver.close()


async def test_it_shares_a_server_with_other_services():
    async def echo(request, context):
        return request

    server = grpc.aio.server()
    receiver = GrpcTransport(bind="127.0.0.1:0", lane_dscp={}, server=server)
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("other.Echo", {"Echo": handler}),))
    await receiver.start()
    await server.start()
    sender = GrpcTransport(lane_dscp={})
    memory = np.zeros(MIB, np.uint8)
    batch = pieces(np.ones(MIB, np.uint8), receiver.register([memory.data]), 32768)
    async with grpc.aio.insecure_channel(receiver.address) as channel:
        assert await channel.unary_unary("/other.Echo/Echo")(b"hello") == b"hello"
        await sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10)
        assert memory.all()
        # Closed, it takes part in nothing, and the server goes on.
        await receiver.close()
        error = await failure_of(sender.write(receiver.address, batch, lane=Lane.LOAD, deadline_s=10))
        assert error.failure is Failure.PEER_LOST
        assert await channel.unary_unary("/other.Echo/Echo")(b"still") == b"still"
    await sender.close()
    await stop_server(server, grace_s=None)


async def test_a_message_that_is_being_sent_is_sent_whole_before_its_stream_ends():
    begun, out, sent = asyncio.Event(), asyncio.Event(), []

    async def send(message):
        begun.set()
        await out.wait()
        sent.append(message)

    sending = asyncio.create_task(send_whole(send, b"message"))
    await begun.wait()
    sending.cancel()
    await asyncio.sleep(0.01)
    assert not sending.done()
    out.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert sent == [b"message"]


async def test_a_source_that_cannot_be_read_fails_its_batch_alone():
    sender, receiver = GrpcTransport(lane_dscp={}), GrpcTransport(lane_dscp={})
    await receiver.start()
    memory = np.zeros(100, np.uint8)
    handle = receiver.register([memory.data])
    gone = memoryview(bytearray(100))
    write = RegionWrite(gone[:50], handle, 0)
    bad = asyncio.create_task(sender.write(receiver.address, [write], lane=Lane.LOAD, deadline_s=5))
    await asyncio.sleep(0)
    write.source.release()
    with pytest.raises(ValueError, match="released memoryview"):
        await bad
    await sender.write(receiver.address, pieces(np.ones(100, np.uint8), handle, 100), lane=Lane.LOAD, deadline_s=5)
    assert memory.all()
    await sender.close()
    await receiver.close()


@pytest.mark.parametrize("message", [b"", b"abc", b"\xff\xff\xff\x7f", b"\x02\x00\x00\x00\xff\xff"])
async def test_nonsense_ends_the_stream_that_sent_it(message):
    receiver = GrpcTransport(lane_dscp={})
    await receiver.start()
    async with grpc.aio.insecure_channel(receiver.address) as channel:
        call = channel.stream_stream(wire.PATH)()
        await call.write(message)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await receiver.close()


def test_a_mark_outside_the_header_field_is_refused():
    async def make():
        GrpcTransport(lane_dscp={Lane.LOAD: 64})

    with pytest.raises(ValueError, match="LOAD has DSCP 64: expected 0 to 63"):
        asyncio.run(make())


def test_a_batch_of_too_many_pieces_says_so():
    class Endless(list):
        def __len__(self):
            return wire.MAX_BATCH_PIECES + 1

    with pytest.raises(ValueError, match="cut it"):
        wire.pieces_of(Endless())
