"""What the transfer tests share: payloads, gates, and a block store that can be told what goes wrong."""

import asyncio
import functools
import hashlib
import selectors

import numpy as np
import pytest

from dualpath_jax.transfer import RegionWrite, TransferError
from dualpath_storage.layout import KVLayout
from dualpath_storage.store import BlockResult, Status

MIB = 1 << 20
LAYOUT = KVLayout.mla(layers=2, latent=48, rope=16, dtype="bfloat16", block_tokens=64)  # 16 KiB a block


def random_bytes(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def digest(array):
    return hashlib.sha256(array).hexdigest()


def pieces(source, handle, piece_bytes, offset=0):
    """A batch that writes an array to a region, piece by piece."""
    view = memoryview(source)
    return [RegionWrite(view[i : i + piece_bytes], handle, offset + i) for i in range(0, len(view), piece_bytes)]


async def failure_of(awaitable):
    with pytest.raises(TransferError) as caught:
        await awaitable
    return caught.value


class InstantSelector(selectors.DefaultSelector):
    """Instead of waiting, moves its loop's clock on."""

    def select(self, timeout=None):
        if timeout:
            self.loop.now_s += timeout + self.loop.late_s
        return super().select(0 if timeout else timeout)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on whose clock nothing but waiting takes time; every timer fires `late_s` late.

    What is measured on it depends on nothing but the code, however busy the machine is.
    """

    def __init__(self):
        selector = InstantSelector()
        selector.loop = self
        self.now_s = 1000.0
        self.late_s = 0.0005
        super().__init__(selector)

    def time(self):
        return self.now_s


def virtual_time(test):
    """Runs an async test on a `VirtualTimeLoop`: no network and no threads in it. It must leave no task behind."""

    async def body(arguments):
        await test(**arguments)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @functools.wraps(test)
    def run(**arguments):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(body(arguments))

    return run


def now():
    """The running loop's clock."""
    return asyncio.get_running_loop().time()


class Gate:
    """An inbound gate that can be shut for an engine."""

    def __init__(self, *shut):
        self.shut = set(shut)
        self.waiting = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, engine, lane, nbytes):
        if engine in self.shut:
            self.waiting.set()
            await self.opened.wait()

    def open(self):
        self.shut.clear()
        self.opened.set()


class ScriptedStore:
    """Blocks in memory; per key a status to answer with, a delay, or an operation that ignores its deadline."""

    def __init__(self):
        self.blocks = {}
        self.script = {}
        self.delay_s = 0.0
        self.order = []
        self.batches = []
        self.deadlines = []
        self.running_batches = 0
        self.most_batches = 0
        self.running = 0
        self.most_running = 0
        self.stuck = asyncio.Event()
        self.in_memory = set()

    def resident(self, key):
        return key in self.in_memory

    async def get(self, reads, *, deadline_s):
        return await self._batch([(read.key, lambda read=read: self._load(read)) for read in reads], deadline_s)

    async def put(self, writes, *, deadline_s):
        return await self._batch([(write.key, lambda write=write: self._save(write)) for write in writes], deadline_s)

    async def _batch(self, acts, deadline_s):
        """All at once, as a store with many threads does them."""
        self.batches.append([key for key, _ in acts])
        self.deadlines.append(deadline_s)
        self.running_batches += 1
        self.most_batches = max(self.most_batches, self.running_batches)
        results = await asyncio.gather(*(self._one(key, act, deadline_s) for key, act in acts), return_exceptions=True)
        self.running_batches -= 1
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    async def _one(self, key, act, deadline_s):
        self.order.append(key)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            if self.script.get(key) == "stuck":
                await self.stuck.wait()
            if self.script.get(key) == "hangs":
                await asyncio.sleep(deadline_s)
                return BlockResult(Status.TIMED_OUT, "as told")
            if isinstance(self.script.get(key), BlockResult | Exception):
                answer = self.script[key]
                if isinstance(answer, Exception):
                    raise answer
                return answer
            return act()
        finally:
            self.running -= 1

    def _load(self, read):
        if read.key not in self.blocks:
            return BlockResult(Status.MISSING, "no such block")
        read.into[:] = self.blocks[read.key][slice(None) if read.layers is None else LAYOUT.layer_span(*read.layers)]
        return BlockResult(Status.OK, from_memory=self.resident(read.key))

    def _save(self, write):
        self.blocks[write.key] = bytes(write.data)
        return BlockResult(Status.OK)
