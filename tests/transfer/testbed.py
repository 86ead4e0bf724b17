"""What the transfer tests share: payloads, gates, and a block store that can be told what goes wrong."""

import asyncio
import hashlib

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


class Gate:
    """An inbound gate that can be shut for an engine."""

    def __init__(self, *shut):
        self.shut = set(shut)
        self.waiting = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, engine, nbytes):
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
        self.running = 0
        self.most_running = 0
        self.stuck = asyncio.Event()

    async def get(self, reads, *, deadline_s):
        return [await self._one(read.key, lambda read=read: self._load(read)) for read in reads]

    async def put(self, writes, *, deadline_s):
        return [await self._one(write.key, lambda write=write: self._save(write)) for write in writes]

    async def _one(self, key, act):
        self.order.append(key)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            if self.script.get(key) == "stuck":
                await self.stuck.wait()
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
        read.into[:] = self.blocks[read.key]
        return BlockResult(Status.OK)

    def _save(self, write):
        self.blocks[write.key] = bytes(write.data)
        return BlockResult(Status.OK)
