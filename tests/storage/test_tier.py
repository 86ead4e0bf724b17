"""The DRAM tier: one load however many wait, verified bytes only, LRU by bytes, nothing swallowed."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from dualpath_storage import (
    BlockRead,
    BlockResult,
    BlockStore,
    BlockWrite,
    DramTier,
    KVLayout,
    MemoryStore,
    Status,
    StoreError,
    tier,
)
from tests.storage.blocks import LAYOUT, Block, chain, overwrite, put_all, raw, statuses

# The contract, as far as it does not look beneath the tier; the fixture `store` here is what they run on.
from tests.storage.test_conformance import (  # noqa: F401
    test_a_passed_deadline_times_everything_out,
    test_close_waits_for_what_runs_and_refuses_what_comes,
    test_contains_and_delete,
    test_empty_batches_are_fine,
    test_many_batches_at_once,
    test_misuse_is_refused_before_anything_begins,
    test_one_key_twice_in_a_batch,
    test_other_tokens_under_a_key_are_corrupt,
    test_reads_fill_buffers_of_any_item_type,
    test_results_are_in_the_order_of_the_reads,
    test_scan_of_an_empty_store,
    test_what_was_put_is_read,
)

SIZE = LAYOUT.block_bytes


class Slow(BlockStore):
    """A store in memory whose operations wait until they are let go, and are counted."""

    def __init__(self) -> None:
        self.inner = MemoryStore(LAYOUT)
        self.go = asyncio.Event()
        self.go.set()
        self.asked: list[bytes] = []
        self.calls: list[list[tuple[int, int] | None]] = []
        self.answer: BlockResult | Exception | None = None
        self.refusal: BlockResult | None = None

    async def get(self, reads: Sequence[BlockRead], *, deadline_s: float) -> list[BlockResult]:
        self.asked += [read.key for read in reads]
        self.calls.append([read.layers for read in reads])
        try:
            async with asyncio.timeout(deadline_s):
                await self.go.wait()
        except TimeoutError:
            quiet = asyncio.get_running_loop().create_future()
            return [BlockResult(Status.TIMED_OUT, "as told", quiet)] * len(reads)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return [self.answer] * len(reads)
        return await self.inner.get(reads, deadline_s=deadline_s)

    async def put(self, writes: Sequence[BlockWrite], *, deadline_s: float) -> list[BlockResult]:
        await self.go.wait()
        if self.refusal is not None:
            return [self.refusal] * len(writes)
        return await self.inner.put(writes, deadline_s=deadline_s)

    async def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return await self.inner.contains(keys)

    async def delete(self, keys: Sequence[bytes]) -> None:
        await self.inner.delete(keys)

    def scan(self) -> AsyncIterator:
        return self.inner.scan()

    async def close(self) -> None:
        await self.inner.close()


@pytest.fixture(params=[1, 7, 1000])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[DramTier]:
    """For the contract: tiers of one block, of fewer blocks than a batch, and of many."""
    tier = DramTier(MemoryStore(LAYOUT), LAYOUT, capacity_bytes=request.param * SIZE)
    yield tier
    assert len(tier) <= request.param
    await tier.close()


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
async def four(slow: Slow) -> AsyncIterator[DramTier]:
    """A tier of four blocks over a slow store."""
    tier = DramTier(slow, LAYOUT, capacity_bytes=4 * SIZE + SIZE // 2)
    yield tier
    slow.go.set()
    await tier.close()


async def load(tier: DramTier, block: Block, deadline_s: float = 20) -> BlockResult:
    read = block.read()
    (result,) = await tier.get([read], deadline_s=deadline_s)
    assert not result.ok or bytes(read.into) == block.data
    return result


async def test_a_block_is_loaded_once_and_read_from_memory_after_that(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    first, second = await load(four, block), await load(four, block)
    assert (first.ok, first.from_memory) == (True, False)
    assert (second.ok, second.from_memory) == (True, True)
    assert slow.asked == [block.key]


async def test_many_waiters_share_one_load_and_one_of_them_answers_for_it(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    waiters = [asyncio.create_task(load(four, block)) for _ in range(20)]
    await asyncio.sleep(0.02)
    slow.go.set()
    results = await asyncio.gather(*waiters)
    assert all(result.ok for result in results)
    assert sum(not result.from_memory for result in results) == 1
    assert slow.asked == [block.key]


async def test_a_waiter_that_is_cancelled_takes_nothing_from_the_others(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    first, second = (asyncio.create_task(load(four, block)) for _ in range(2))
    await asyncio.sleep(0.02)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slow.go.set()
    result = await second
    assert (result.ok, result.from_memory) == (True, False), "somebody answers for what storage read"
    assert slow.asked == [block.key]


async def test_a_load_outlives_all_who_waited_for_it(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    waiter = asyncio.create_task(load(four, block))
    await asyncio.sleep(0.02)
    waiter.cancel()
    await asyncio.wait({waiter})
    slow.go.set()
    while not four.resident(block.key):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert not (await load(four, block)).from_memory, "the first who gets it answers for what storage read"
    assert (await load(four, block)).from_memory
    assert slow.asked == [block.key]


async def test_an_early_deadline_of_one_waiter_is_not_the_others(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    hasty = asyncio.create_task(load(four, block, deadline_s=0.1))
    await asyncio.sleep(0)
    patient = asyncio.create_task(load(four, block, deadline_s=20))
    result = await hasty
    assert (result.status, result.quiet) == (Status.TIMED_OUT, None)
    await asyncio.sleep(0.05)
    slow.go.set()
    assert (await patient).ok
    assert slow.asked == [block.key] * 2, "it ended with the hasty one's deadline"


async def test_a_late_waiter_ends_by_its_own_deadline(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    slow.go.clear()
    patient = asyncio.create_task(load(four, block, deadline_s=20))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert (await load(four, block, deadline_s=0.05)).status is Status.TIMED_OUT
    slow.go.set()
    assert (await patient).status is Status.MISSING


@pytest.mark.parametrize("status", [Status.MISSING, Status.CORRUPT, Status.FAILED])
async def test_a_failed_load_is_passed_up_to_every_waiter_and_not_kept(
    four: DramTier, slow: Slow, status: Status
) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    waiters = [asyncio.create_task(load(four, block)) for _ in range(5)]
    await asyncio.sleep(0.02)
    slow.answer = BlockResult(status, "as told")
    slow.go.set()
    assert await asyncio.gather(*waiters) == [BlockResult(status, "as told")] * 5
    assert not four.resident(block.key)
    slow.answer = None
    assert (await load(four, block)).ok
    assert slow.asked == [block.key] * 2


async def test_a_store_that_cannot_work_is_an_error_to_every_waiter(four: DramTier, slow: Slow) -> None:
    block, other = chain(2)
    slow.answer = StoreError("no permission")
    ends = await asyncio.gather(*(load(four, block) for _ in range(3)), return_exceptions=True)
    assert [str(end) for end in ends] == ["no permission"] * 3
    with pytest.raises(StoreError, match="no permission"):
        await four.get([block.read(), other.read()], deadline_s=5)


async def test_damaged_bytes_are_never_resident(four: DramTier, slow: Slow) -> None:
    blocks = chain(3)
    await put_all(slow.inner, blocks)
    whole = raw(slow.inner, blocks[1])
    overwrite(slow.inner, blocks[1], whole[:-1] + bytes([whole[-1] ^ 1]))
    assert await statuses(four, blocks) == ["ok", "corrupt", "ok"]
    assert [four.resident(block.key) for block in blocks] == [True, False, True]


async def test_what_one_call_has_to_load_is_one_batch(four: DramTier, slow: Slow) -> None:
    blocks = chain(6)
    await put_all(slow.inner, blocks)
    slow.go.clear()
    first = asyncio.create_task(statuses(four, blocks[1:4]))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(statuses(four, [*blocks, *blocks]))
    await asyncio.sleep(0.01)
    slow.go.set()
    assert await first == ["ok"] * 3
    assert await second == ["ok"] * 12
    assert [len(call) for call in slow.calls] == [3, 3]


def part(block: Block, first: int, last: int) -> BlockRead:
    span = LAYOUT.layer_span(first, last)
    return BlockRead(block.key, block.tokens, memoryview(bytearray(span.stop - span.start)), (first, last))


async def test_layers_of_a_resident_block_come_from_memory(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(four, [block])
    read = part(block, 1, 3)
    (result,) = await four.get([read], deadline_s=5)
    assert (result.ok, result.from_memory) == (True, True)
    assert bytes(read.into) == block.data[LAYOUT.layer_span(1, 3)]
    assert slow.calls == []


async def test_layers_of_another_block_are_read_alone_once_and_not_kept(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    reads = [part(block, 1, 2), part(block, 1, 2), part(block, 0, 2)]
    waiters = [asyncio.create_task(four.get([read], deadline_s=5)) for read in reads]
    await asyncio.sleep(0.01)
    slow.go.set()
    results = [result for waiter in waiters for result in await waiter]
    assert [(result.ok, result.from_memory) for result in results] == [(True, False), (True, True), (True, False)]
    assert [bytes(read.into) for read in reads] == [block.data[LAYOUT.layer_span(*read.layers or ())] for read in reads]
    assert slow.calls == [[(1, 2)], [(0, 2)]]
    assert not four.resident(block.key)


async def test_layers_wait_for_the_whole_block_that_is_being_loaded(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    read = part(block, 2, 3)
    whole = asyncio.create_task(load(four, block))
    await asyncio.sleep(0.01)
    layers = asyncio.create_task(four.get([read], deadline_s=5))
    await asyncio.sleep(0.01)
    slow.go.set()
    assert (await whole).ok
    assert (await layers)[0].ok
    assert bytes(read.into) == block.data[LAYOUT.layer_span(2, 3)]
    assert slow.calls == [[None]]


async def test_least_recently_used_blocks_go_first(four: DramTier, slow: Slow) -> None:
    blocks = chain(6)
    await put_all(four, blocks[:4])
    await load(four, blocks[0])
    await four.contains([blocks[1].key])  # no use
    await put_all(four, [blocks[2]])
    await load(four, blocks[3])
    await put_all(four, blocks[4:])
    assert [four.resident(block.key) for block in blocks] == [False, False, True, True, True, True]
    assert len(four) == 4
    assert await statuses(four, blocks) == ["ok"] * 6


async def test_blocks_that_are_copied_out_are_not_evicted(
    four: DramTier, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "COPY_BYTES", SIZE // 4)
    blocks = chain(10)
    await put_all(four, blocks[:4])
    copying = [asyncio.create_task(load(four, block)) for block in blocks[:3]]
    await asyncio.sleep(0)
    monkeypatch.setattr(tier, "COPY_BYTES", SIZE)
    writing = asyncio.create_task(put_all(four, blocks[4:]))
    await asyncio.sleep(0)
    assert not any(task.done() for task in copying)
    assert [four.resident(block.key) for block in blocks] == [True] * 3 + [False] * 6 + [True]
    assert [(await task).from_memory for task in copying] == [True] * 3
    await writing


async def test_blocks_that_are_held_are_not_evicted(four: DramTier) -> None:
    blocks = chain(12)
    await put_all(four, blocks[:4])
    with four.holding(block.key for block in blocks[:6]):
        await put_all(four, blocks[4:8])
        assert [four.resident(block.key) for block in blocks[:8]] == [True] * 4 + [False] * 4
    await put_all(four, blocks[8:])
    assert [four.resident(block.key) for block in blocks] == [False] * 8 + [True] * 4


async def test_a_write_can_be_read_at_once_and_its_result_is_the_stores(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    slow.go.clear()
    data = bytearray(block.data)
    write = BlockWrite(block.key, block.parent, block.tokens, memoryview(data))
    writing = asyncio.create_task(four.put([write], deadline_s=20))
    await asyncio.sleep(0)
    assert (await load(four, block)).from_memory
    assert not writing.done()
    assert await four.contains([block.key]) == [False]
    slow.go.set()
    assert [result.ok for result in await writing] == [True]
    data[:] = bytes(SIZE)  # the caller's buffer is the caller's again
    assert (await load(four, block)).ok
    assert await four.contains([block.key]) == [True]
    assert slow.asked == []


@pytest.mark.parametrize("status", [Status.FULL, Status.FAILED, Status.TIMED_OUT])
async def test_what_the_store_did_not_take_is_dropped(four: DramTier, slow: Slow, status: Status) -> None:
    block, loaded = chain(2)
    await put_all(slow.inner, [loaded])
    await load(four, loaded)
    slow.refusal = BlockResult(status, "as told")
    assert await four.put([block.write(), loaded.write()], deadline_s=5) == [slow.refusal] * 2
    assert not four.resident(block.key)
    assert four.resident(loaded.key), "what was read from the store stays"


async def test_a_cancelled_write_leaves_nothing(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    slow.go.clear()
    writing = asyncio.create_task(four.put([block.write()], deadline_s=20))
    await asyncio.sleep(0.01)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert not four.resident(block.key)


async def test_a_block_that_is_deleted_while_it_loads_is_not_kept(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    await put_all(slow.inner, [block])
    slow.go.clear()
    waiter = asyncio.create_task(load(four, block))
    await asyncio.sleep(0.01)
    await four.delete([block.key])
    slow.go.set()
    await waiter
    assert not four.resident(block.key)
    assert (await load(four, block)).status is Status.MISSING


async def test_a_write_during_a_load_that_misses_serves_the_waiters(four: DramTier, slow: Slow) -> None:
    (block,) = chain(1)
    slow.go.clear()
    waiter = asyncio.create_task(load(four, block))
    await asyncio.sleep(0.01)
    writing = asyncio.create_task(put_all(four, [block]))
    await asyncio.sleep(0.01)
    slow.answer = BlockResult(Status.MISSING)
    slow.go.set()
    assert (await waiter).ok
    await writing


async def test_changes_are_said_once_in_bounded_batches(four: DramTier) -> None:
    blocks = chain(6)
    keys = [block.key for block in blocks]
    await put_all(four, blocks[:4])
    assert four.take_changes(3) == (keys[:3], [])
    assert four.take_changes(3) == (keys[3:4], [])
    assert four.take_changes(3) == ([], [])
    await put_all(four, blocks[4:])
    assert [sorted(part) for part in four.take_changes(100)] == [sorted(keys[4:]), sorted(keys[:2])]
    await four.delete([keys[2]])
    four.tell_all_again()
    assert [sorted(part) for part in four.take_changes(100)] == [sorted(keys[3:]), [keys[2]]]


def test_a_tier_too_small_for_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{SIZE - 1} bytes: expected at least one block of this layout, {SIZE} "):
        DramTier(MemoryStore(LAYOUT), LAYOUT, capacity_bytes=SIZE - 1)


async def test_blocks_of_many_copies_yield_to_the_loop() -> None:
    layout = KVLayout.mla(layers=2, latent=12, rope=4, dtype="uint8", block_tokens=64 * 1024)
    assert layout.block_bytes > 3 * tier.COPY_BYTES
    tiered = DramTier(MemoryStore(layout), layout, capacity_bytes=layout.block_bytes)
    (block,) = chain(1, layout=layout)
    await put_all(tiered, [block])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns = 0
    assert await statuses(tiered, [block]) == ["ok"]
    counting.cancel()
    assert turns >= layout.block_bytes // tier.COPY_BYTES - 1
    await tiered.close()
