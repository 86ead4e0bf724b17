"""The gRPC transport against bare gRPC byte streams, and Layer Blocks against large pieces, on loopback.

    python benchmarks/transfer.py [--rounds=9] [--mebibytes=256]

Two bare streams: one sends the same frame again and again and throws it away (what gRPC can do at best), the other
moves the same bytes as the transport does, from memory to memory, and does nothing else. The receiver is a process of
its own. Rounds of all contestants alternate and the medians are compared, so that the ratios mean something on a busy
machine too; the rates themselves are for orientation.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection

import grpc
import numpy as np

from dualpath_jax.transfer import GrpcTransport, Lane, RegionHandle, RegionWrite, keep_freed_memory
from dualpath_jax.transfer.endpoint import SERVER_OPTIONS
from dualpath_jax.transfer.wire import FRAME_BYTES, MESSAGE_OPTIONS

BARE_SERVICE = "benchmark.Bare"
REGION_BYTES = 64 * 1024 * 1024
DEADLINE_S = 120.0
SOURCE = np.ones(REGION_BYTES, np.uint8).data
BARE, MOVING, LARGE = "bare stream", "bare stream, memory to memory", "transport, 4 MiB pieces"
BLOCKS = ("transport, batches of 512 x 32 KiB", "transport, batches of 64 x 32 KiB")
Sink = Callable[[AsyncIterator[bytes], object], AsyncIterator[bytes]]


def _sink(memory: memoryview | None) -> Sink:
    async def receive(messages: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        received = 0
        async for message in messages:
            if memory is not None:
                start = received % REGION_BYTES
                memory[start : start + len(message)] = message
            received += len(message)
        yield received.to_bytes(8, "little")

    return receive


async def _serve(pipe: Connection) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    memory = np.ones(REGION_BYTES, np.uint8).data
    methods = {"Drop": _sink(None), "Store": _sink(memory)}
    handlers = {name: grpc.stream_stream_rpc_method_handler(sink) for name, sink in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BARE_SERVICE, handlers),))
    transport = GrpcTransport(lane_dscp={}, server=server)
    pipe.send((transport.address, transport.register([memory])))
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    await transport.close()
    await server.stop(None)


def _receiver(pipe: Connection) -> None:
    keep_freed_memory()
    asyncio.run(_serve(pipe))


async def _bare(address: str, total_bytes: int, *, move: bool) -> None:
    async with grpc.aio.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
        call = channel.stream_stream(f"/{BARE_SERVICE}/{'Store' if move else 'Drop'}")()
        frame = bytes(FRAME_BYTES)
        for start in range(0, total_bytes, FRAME_BYTES):
            if move:
                frame = bytes(SOURCE[start % REGION_BYTES : start % REGION_BYTES + FRAME_BYTES])
            await call.write(frame)
        await call.done_writing()
        received = [int.from_bytes(reply, "little") async for reply in call]
        assert received == [total_bytes], received


async def _batches(
    transport: GrpcTransport, address: str, region: RegionHandle, *, total_bytes: int, piece_bytes: int, pieces: int
) -> None:
    """Writes batch after batch, as many at a time as fill 16 MiB, or two."""
    per_batch = piece_bytes * pieces
    room = asyncio.Semaphore(max(2, 16 * 1024 * 1024 // per_batch))

    async def one(index: int) -> None:
        start = index * per_batch % REGION_BYTES
        offsets = range(start, start + per_batch, piece_bytes)
        async with room:
            batch = [RegionWrite(SOURCE[offset : offset + piece_bytes], region, offset) for offset in offsets]
            await transport.write(address, batch, lane=Lane.LOAD, deadline_s=DEADLINE_S)

    await asyncio.gather(*(one(index) for index in range(total_bytes // per_batch)))


async def _contest(address: str, region: RegionHandle, total_bytes: int, rounds: int) -> dict[str, list[float]]:
    transport = GrpcTransport(lane_dscp={Lane.LOAD: 8})

    def batches(piece_bytes: int, pieces: int) -> Callable[[], Awaitable[None]]:
        return lambda: _batches(
            transport, address, region, total_bytes=total_bytes, piece_bytes=piece_bytes, pieces=pieces
        )

    contestants = {
        BARE: lambda: _bare(address, total_bytes, move=False),
        MOVING: lambda: _bare(address, total_bytes, move=True),
        LARGE: batches(4 * 1024 * 1024, 2),
        BLOCKS[0]: batches(32 * 1024, 512),
        BLOCKS[1]: batches(32 * 1024, 64),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            await run()
            rates[name].append(total_bytes / (time.perf_counter() - start))
    await transport.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mebibytes", type=int, default=256, help="bytes of one run of one contestant")
    arguments = parser.parse_args()
    keep_freed_memory()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=_receiver, args=(there,), daemon=True)
    receiver.start()
    try:
        address, region = here.recv()
        rates = asyncio.run(_contest(address, region, arguments.mebibytes * 1024 * 1024, arguments.rounds))
    finally:
        here.send(None)
        receiver.join(10)
    for name, measured in rates.items():
        print(f"{name:36s} {statistics.median(measured) / 1e9:6.2f} GB/s   best {max(measured) / 1e9:6.2f}")
    print(f"transport / bare stream                    {_ratio(rates, LARGE, BARE):5.2f}")
    print(f"transport / bare stream, memory to memory  {_ratio(rates, LARGE, MOVING):5.2f}   (at least 0.9 wanted)")
    blocks = min(_ratio(rates, name, LARGE) for name in BLOCKS)
    print(f"Layer Blocks / 4 MiB pieces                {blocks:5.2f}   (at least 0.7 wanted)")


def _ratio(rates: dict[str, list[float]], name: str, to: str) -> float:
    """Ratio of medians: rounds alternate, so that both meet the same machine."""
    return statistics.median(rates[name]) / statistics.median(rates[to])


if __name__ == "__main__":
    main()
