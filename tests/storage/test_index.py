"""The prefix index against an obvious model of it."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_storage import MemoryStore, PrefixIndex, StoredBlock
from tests.storage.blocks import LAYOUT, chain, put_all

ROOT = bytes(32)


def key(name: int) -> bytes:
    return name.to_bytes(32, "big")


def test_the_longest_prefix_ends_at_the_first_gap() -> None:
    blocks = chain(6)
    keys = [block.key for block in blocks]
    index = PrefixIndex()
    assert index.longest_prefix(keys) == 0
    index.add_many((block.key, block.parent) for block in blocks)
    assert index.longest_prefix(keys) == 6
    assert index.longest_prefix([*keys[:3], ROOT, *keys[3:]]) == 3
    assert index.longest_prefix([]) == 0


def test_children_of_a_discarded_block_come_back_with_it() -> None:
    blocks = chain(5)
    keys = [block.key for block in blocks]
    index = PrefixIndex()
    index.add_many((block.key, block.parent) for block in blocks)
    index.discard(keys[2])
    index.discard(keys[2])
    assert index.longest_prefix(keys) == 2
    assert len(index) == 4
    assert set(index.leaves()) == {keys[1], keys[4]}
    index.add(keys[2], blocks[2].parent)
    assert index.longest_prefix(keys) == 5
    assert index.leaves() == [keys[4]]


def test_branches_have_leaves_of_their_own() -> None:
    index = PrefixIndex()
    index.add_many([(key(1), ROOT), (key(2), key(1)), (key(3), key(1)), (key(4), ROOT)])
    assert set(index.leaves()) == {key(2), key(3), key(4)}
    for gone in (key(2), key(3)):
        index.discard(gone)
    assert set(index.leaves()) == {key(1), key(4)}
    assert key(1) in index
    assert key(2) not in index


OPERATIONS = st.lists(st.tuples(st.sampled_from(["add", "discard"]), st.integers(1, 12)), max_size=60)


@given(parents=st.lists(st.integers(0, 12), min_size=12, max_size=12), operations=OPERATIONS)
def test_against_a_naive_model(parents: list[int], operations: list[tuple[str, int]]) -> None:
    """Blocks 1 to 12, each after an earlier one or the root 0, come and go in any order."""
    parent_of = {name: parent % name for name, parent in enumerate(parents, 1)}
    index, stored = PrefixIndex(), set[int]()
    for operation, name in operations:
        if operation == "add":
            index.add(key(name), key(parent_of[name]))
            stored.add(name)
        else:
            index.discard(key(name))
            stored.discard(name)
    assert len(index) == len(stored)
    assert set(index.leaves()) == {key(n) for n in stored if not any(parent_of[other] == n for other in stored)}
    for name in parent_of:
        path = [name]
        while parent_of[path[0]]:
            path.insert(0, parent_of[path[0]])
        present = [step in stored for step in path]
        assert index.longest_prefix([key(step) for step in path]) == [*present, False].index(False)


async def test_rebuild_finds_what_is_stored_and_forgets_the_rest() -> None:
    store = MemoryStore(LAYOUT)
    blocks, gone = chain(20), chain(3, seed=1)
    await put_all(store, blocks)
    index = PrefixIndex()
    index.add_many((block.key, block.parent) for block in gone)
    assert await index.rebuild(store) == 20
    assert len(index) == 20
    assert index.longest_prefix([block.key for block in blocks]) == 20
    assert index.longest_prefix([block.key for block in gone]) == 0
    await store.close()


async def test_blocks_added_during_a_rebuild_stay() -> None:
    store = MemoryStore(LAYOUT)
    blocks, new = chain(4), chain(1, seed=1)[0]
    await put_all(store, blocks)
    index = PrefixIndex()

    class Scanned:
        """A store whose scan is interrupted by a publication."""

        async def scan(self):
            async for stored in store.scan():
                index.add(new.key, new.parent)
                yield stored

    await index.rebuild(Scanned())  # type: ignore[arg-type]
    assert len(index) == 5
    assert new.key in index
    await store.close()


@pytest.mark.parametrize("branching", [1, 4])
def test_a_hundred_thousand_blocks(branching: int) -> None:
    raw = np.random.default_rng(0).bytes(32 * 100_000)
    keys = [raw[i : i + 32] for i in range(0, len(raw), 32)]
    parents = [ROOT if i == 0 else keys[(i - 1) // branching] for i in range(len(keys))]
    blocks = [StoredBlock(*pair, 0) for pair in zip(keys, parents, strict=True)]
    index = PrefixIndex()
    start = time.process_time()
    index.add_many((block.key, block.parent) for block in blocks)
    assert index.longest_prefix(keys) == 100_000
    leaves = index.leaves()
    for block in blocks:
        index.discard(block.key)
    assert time.process_time() - start < 2
    assert len(leaves) == (1 if branching == 1 else 75_000)
    assert len(index) == 0
