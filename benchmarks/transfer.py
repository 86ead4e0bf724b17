"""Both transports against what they stand on, and Layer Blocks against large pieces, on loopback.

    python benchmarks/transfer.py [--rounds=9] [--mebibytes=1024]

The gRPC transport meets two bare streams: one moves the same bytes as the transport does, from memory to memory, and
does nothing else; the other sends the same frame again and again and throws it away (no use to anybody, but what gRPC
can do at best). The NIXL transport meets bare NIXL with the same descriptors and as many bytes under way. Beside them
stands `iperf3`, one TCP stream. What is not installed is left out. The receiver is a process of its own. Rounds of all
contestants alternate and the medians are compared, so that the ratios mean something on a busy machine too; the rates
themselves are for orientation.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import secrets
import shutil
import socket
import statistics
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, final

import grpc
import numpy as np

from dualpath_jax.transfer import (
    GrpcTransport,
    Lane,
    NixlTransport,
    RegionHandle,
    RegionWrite,
    Transport,
    keep_freed_memory,
)
from dualpath_jax.transfer.endpoint import SERVER_OPTIONS
from dualpath_jax.transfer.nixl_agent import WAKE_US, nixl_bindings
from dualpath_jax.transfer.nixl_outbound import POSTED_BYTES
from dualpath_jax.transfer.nixl_transport import default_options
from dualpath_jax.transfer.wire import MESSAGE_OPTIONS

MIB = 1024 * 1024
BARE_SERVICE = "benchmark.Bare"
REGION_BYTES = 64 * MIB
BARE_FRAME_BYTES = MIB
UNDER_WAY_BYTES = POSTED_BYTES
DEADLINE_S = 120.0
HOST = "127.0.0.1:0"
SOURCE_ARRAY = np.ones(REGION_BYTES, np.uint8)
SOURCE = SOURCE_ARRAY.data
BARE, MOVING, IPERF = "bare gRPC stream", "bare gRPC stream, memory to memory", "iperf3"
SHAPES = {"2 x 4 MiB": (4 * MIB, 2), "512 x 32 KiB": (32 * 1024, 512), "64 x 32 KiB": (32 * 1024, 64)}
"""Batches: bytes of a piece, and pieces."""

Sink = Callable[[AsyncIterator[bytes], object], AsyncIterator[bytes]]
Run = Callable[[], Awaitable[None]]
BareTarget = tuple[str, bytes, int]
"""Name and metadata of a NIXL agent, and the address of its memory."""


@dataclass(frozen=True)
class Target:
    """What the receiving process offers; NIXL's part is None where it is not installed."""

    grpc_address: str
    grpc_region: RegionHandle
    nixl: tuple[str, RegionHandle] | None
    bare_nixl: "BareTarget | None"


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
    memory = np.ones(REGION_BYTES, np.uint8)
    methods = {"Drop": _sink(None), "Store": _sink(memory.data)}
    handlers = {name: grpc.stream_stream_rpc_method_handler(sink) for name, sink in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(BARE_SERVICE, handlers),))
    transports: list[Transport] = [GrpcTransport(bind=HOST, lane_dscp={}, server=server)]
    bare = None
    with contextlib.suppress(ImportError):
        transports.append(NixlTransport(bind=HOST, lane_dscp={}))
        bare = BareNixl(memory)
    await server.start()
    for transport in transports:
        await transport.start()
    reached = [(transport.address, transport.register([memory.data])) for transport in transports]
    pipe.send(Target(*reached[0], reached[1] if bare else None, bare.target if bare else None))
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for transport in transports:
        await transport.close()
    if bare is not None:
        bare.close()
    await server.stop(None)


def _receiver(pipe: Connection) -> None:
    keep_freed_memory()
    asyncio.run(_serve(pipe))


async def _bare_grpc(address: str, total_bytes: int, *, move: bool) -> None:
    async with grpc.aio.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
        call = channel.stream_stream(f"/{BARE_SERVICE}/{'Store' if move else 'Drop'}")()
        frame = bytes(BARE_FRAME_BYTES)
        for start in range(0, total_bytes, BARE_FRAME_BYTES):
            if move:
                frame = bytes(SOURCE[start % REGION_BYTES : start % REGION_BYTES + BARE_FRAME_BYTES])
            await call.write(frame)
        await call.done_writing()
        received = [int.from_bytes(reply, "little") async for reply in call]
        assert received == [total_bytes], received


def _batches(total_bytes: int, piece_bytes: int, pieces: int) -> Iterator[list[int]]:
    """The offsets of each batch's pieces."""
    per_batch = piece_bytes * pieces
    for start in range(0, total_bytes, per_batch):
        yield [*range(start % REGION_BYTES, start % REGION_BYTES + per_batch, piece_bytes)]


async def _at_once(puts: Iterator[Awaitable[None]], per_batch: int) -> None:
    """Twice as much is handed over at a time as a transport has under way, so that it can prepare what comes next."""
    room = asyncio.Semaphore(2 * UNDER_WAY_BYTES // per_batch)

    async def one(put: Awaitable[None]) -> None:
        async with room:
            await put

    await asyncio.gather(*(one(put) for put in puts))


async def _transport(transport: Transport, target: tuple[str, RegionHandle], total_bytes: int, shape: str) -> None:
    piece_bytes, pieces = SHAPES[shape]
    address, region = target

    async def put(offsets: list[int]) -> None:
        batch = [RegionWrite(SOURCE[offset : offset + piece_bytes], region, offset) for offset in offsets]
        await transport.write(address, batch, lane=Lane.LOAD, deadline_s=DEADLINE_S)

    await _at_once((put(offsets) for offsets in _batches(total_bytes, piece_bytes, pieces)), piece_bytes * pieces)


@final
class BareNixl:
    """NIXL by itself, without an event loop: posts as much at a time as the transport, and looks whether it is done."""

    def __init__(self, memory: np.ndarray) -> None:
        nixl = self._nixl = nixl_bindings()
        config = nixl.nixlAgentConfig()
        config.useProgThread, config.pthrDelay = True, WAKE_US
        self.name, self._address = f"bare-{secrets.token_hex(4)}", memory.ctypes.data
        self._agent = nixl.nixlAgent(self.name, config)
        engine_config = ",".join(f"{key}={value}" for key, value in default_options(HOST).items())
        self._backend = [self._agent.createBackend("UCX", {"engine_config": engine_config})]
        memory_list = nixl.nixlRegDList(nixl.DRAM_SEG, [(memory.ctypes.data, memory.nbytes, 0, "")])
        self._agent.registerMem(memory_list, self._backend)
        self.target: BareTarget = (self.name, bytes(self._agent.getLocalMD()), memory.ctypes.data)

    def close(self) -> None:
        del self._agent

    async def write(self, target: BareTarget, total_bytes: int, shape: str) -> None:
        piece_bytes, pieces = SHAPES[shape]
        name, metadata, there = target
        self._agent.loadRemoteMD(metadata)
        at_once = UNDER_WAY_BYTES // (piece_bytes * pieces)
        under_way: deque[int] = deque()
        for offsets in _batches(total_bytes, piece_bytes, pieces):
            if len(under_way) == at_once:
                self._finish(under_way.popleft())
            here_list = self._pieces([(self._address + offset, piece_bytes, 0) for offset in offsets])
            there_list = self._pieces([(there + offset, piece_bytes, 0) for offset in offsets])
            handle = self._agent.createXferReq(self._nixl.NIXL_WRITE, here_list, there_list, name, b"", self._backend)
            self._agent.postXferReq(handle, b"")
            under_way.append(handle)
        for handle in under_way:
            self._finish(handle)

    def _pieces(self, rows: list[tuple[int, int, int]]) -> Any:
        return self._nixl.nixlXferDList(self._nixl.DRAM_SEG, np.array(rows, np.uint64))

    def _finish(self, handle: int) -> None:
        while self._agent.getXferStatus(handle) != self._nixl.NIXL_SUCCESS:
            time.sleep(0.0001)
        self._agent.releaseXferReq(handle)


def _iperf(total_bytes: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port], stdout=subprocess.DEVNULL) as server:
        time.sleep(0.3)
        client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-n", str(total_bytes), "-l", "1M", "-J"]
        done = subprocess.run(client, capture_output=True, check=True, timeout=DEADLINE_S)
        server.wait(10)
    _iperf_rates.append(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8)


_iperf_rates: list[float] = []
"""What it said itself: its start is not to count."""


async def _contest(target: Target, total_bytes: int, rounds: int) -> dict[str, list[float]]:
    closing = contextlib.AsyncExitStack()
    by_grpc = GrpcTransport(lane_dscp={Lane.LOAD: 8})
    closing.push_async_callback(by_grpc.close)
    contestants: dict[str, Run] = {
        BARE: lambda: _bare_grpc(target.grpc_address, total_bytes, move=False),
        MOVING: lambda: _bare_grpc(target.grpc_address, total_bytes, move=True),
    }
    ends: list[tuple[str, Callable[[str], Run]]] = []
    grpc_target = (target.grpc_address, target.grpc_region)
    ends.append(("gRPC transport", lambda shape: lambda: _transport(by_grpc, grpc_target, total_bytes, shape)))
    if target.nixl is not None and target.bare_nixl is not None:
        nixl, bare, by_nixl = target.nixl, target.bare_nixl, NixlTransport(lane_dscp={Lane.LOAD: 8})
        closing.push_async_callback(by_nixl.close)
        bare_nixl = BareNixl(SOURCE_ARRAY)
        closing.callback(bare_nixl.close)
        ends.append(("bare NIXL", lambda shape: lambda: bare_nixl.write(bare, total_bytes, shape)))
        ends.append(("NIXL transport", lambda shape: lambda: _transport(by_nixl, nixl, total_bytes, shape)))
    for name, end in ends:
        contestants |= {f"{name}, {shape}": end(shape) for shape in SHAPES}
    if shutil.which("iperf3"):
        contestants[IPERF] = lambda: asyncio.to_thread(_iperf, total_bytes)
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    async with closing:
        for _ in range(rounds):
            for name, run in contestants.items():
                start = time.perf_counter()
                await run()
                rates[name].append(total_bytes / (time.perf_counter() - start))
    if _iperf_rates:
        rates[IPERF] = _iperf_rates
    return rates


def _report(rates: dict[str, list[float]]) -> None:
    for name, measured in rates.items():
        print(f"{name:36s} {statistics.median(measured) / 1e9:6.2f} GB/s   best {max(measured) / 1e9:6.2f}")
    large, *blocks = SHAPES

    def ratio(what: str, name: str, to: str, wanted: str = "") -> None:
        if name in rates and to in rates:
            value = statistics.median(rates[name]) / statistics.median(rates[to])
            print(f"{what:64s} {value:5.2f}   {wanted}")

    ratio("gRPC transport / bare stream, memory to memory", f"gRPC transport, {large}", MOVING, "(at least 0.9 wanted)")
    ratio("gRPC transport / bare stream of one frame", f"gRPC transport, {large}", BARE)
    for shape in SHAPES:
        wanted = "(at least 0.9 wanted)"
        ratio(f"NIXL transport / bare NIXL, {shape}", f"NIXL transport, {shape}", f"bare NIXL, {shape}", wanted)
    for name in ("gRPC transport", "NIXL transport"):
        for shape in blocks:
            wanted = "(at least 0.7 wanted)"
            ratio(f"{name}: {shape} / {large}", f"{name}, {shape}", f"{name}, {large}", wanted)
        ratio(f"{name} / iperf3", f"{name}, {large}", IPERF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mebibytes", type=int, default=1024, help="bytes of one run of one contestant")
    arguments = parser.parse_args()
    keep_freed_memory()
    context: Any = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=_receiver, args=(there,), daemon=True)
    receiver.start()
    try:
        target = here.recv()
        rates = asyncio.run(_contest(target, arguments.mebibytes * MIB, arguments.rounds))
    finally:
        here.send(None)
        receiver.join(10)
    _report(rates)


if __name__ == "__main__":
    main()
