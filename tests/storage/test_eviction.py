"""Eviction: leaves first, the least recently used among them, nothing in use, down to the low-water mark."""

import time
from collections.abc import Container

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_storage import PrefixIndex
from dualpath_storage.eviction import HIGH_WATER, LOW_WATER, Eviction

ROOT = bytes(32)
BLOCK_BYTES = 1000


def key(name: int) -> bytes:
    return name.to_bytes(32, "big")


def chains(index: PrefixIndex, *lengths: int) -> list[list[bytes]]:
    """Sequences of so many blocks each, without a common prefix."""
    made = []
    for number, length in enumerate(lengths, 1):
        keys = [key(1000 * number + depth) for depth in range(length)]
        index.add_many(zip(keys, [ROOT, *keys], strict=False))
        made.append(keys)
    return made


def eviction(index: PrefixIndex, *, blocks: int | None = None, time_to_live_s: float | None = None) -> Eviction:
    capacity_bytes = None if blocks is None else blocks * BLOCK_BYTES
    return Eviction(
        index, block_bytes=BLOCK_BYTES, now_s=0.0, capacity_bytes=capacity_bytes, time_to_live_s=time_to_live_s
    )


def choose(policy: Eviction, now_s: float = 50.0, in_use: Container[bytes] = ()) -> list[bytes]:
    """Chosen and deleted."""
    blocks = policy.choose(now_s, lambda: in_use)
    policy.deleted(blocks, now_s)
    return [block.key for block in blocks]


def test_nothing_goes_before_the_high_water_mark_and_then_all_above_the_low_one() -> None:
    index = PrefixIndex()
    policy = eviction(index, blocks=100)
    chains(index, 95)
    assert choose(policy) == []
    index.add(key(1), ROOT)
    gone = choose(policy)
    assert len(gone) == 96 - 85
    assert len(index) == 85 == LOW_WATER * 100
    assert HIGH_WATER * 100 == 95
    assert policy.evicted_blocks == 11


def test_sequences_shrink_from_their_ends_the_longest_unused_first() -> None:
    index = PrefixIndex()
    old, young, oldest = chains(index, 4, 4, 2)
    policy = eviction(index, blocks=10)
    policy.used(old, 10.0)
    policy.used(young, 20.0)
    policy.used(oldest, 5.0)
    assert choose(policy) == [oldest[1], oldest[0]]
    index.add(oldest[0], ROOT)
    index.add(key(7), ROOT)
    policy.used([oldest[0], key(7)], 30.0)
    assert choose(policy) == [old[3], old[2]]
    assert index.longest_prefix(old) == 2


def test_a_parent_outlives_its_children_however_long_it_is_unused() -> None:
    index = PrefixIndex()
    (keys,) = chains(index, 10)
    policy = eviction(index, blocks=10)
    policy.used(keys[8:], 40.0)  # the first eight have not been used since the start
    assert choose(policy) == [keys[9], keys[8]]


def test_blocks_that_are_read_stay_and_so_do_their_parents() -> None:
    index = PrefixIndex()
    read, other = chains(index, 5, 5)
    policy = eviction(index, blocks=10)
    policy.used(other, 40.0)
    assert choose(policy, in_use=set(read)) == [other[4], other[3]]
    chains(index, 5, 5)
    assert choose(policy, in_use={*read, *other}) == []
    assert len(index) == 10


def test_asking_is_no_use() -> None:
    index = PrefixIndex()
    asked, other = chains(index, 5, 5)
    policy = eviction(index, blocks=10)
    policy.used(asked, 1.0)
    policy.used(other, 2.0)
    assert index.longest_prefix(asked) == 5
    assert asked[4] in index
    assert choose(policy) == [asked[4], asked[3]]


def test_a_time_to_live_evicts_what_nothing_used_for_so_long() -> None:
    index = PrefixIndex()
    old, shared = chains(index, 3, 6)
    policy = eviction(index, time_to_live_s=100.0)
    policy.used(shared, 0.0)
    policy.used(shared[:2], 60.0)
    assert choose(policy, now_s=99.0) == []
    assert set(choose(policy, now_s=106.0)) == {*old, *shared[2:]}
    assert index.longest_prefix(shared) == 2
    assert choose(policy, now_s=110.0) == [], "it is too early to look again"
    assert choose(policy, now_s=166.0) == [shared[1], shared[0]]


def test_without_limits_nothing_goes_and_nothing_is_remembered() -> None:
    index = PrefixIndex()
    (keys,) = chains(index, 50)
    policy = eviction(index)
    policy.used(keys, 1.0)
    policy.found_full()
    assert not policy.enabled
    assert choose(policy, now_s=1e9) == []
    assert policy._used_s == {}


def test_a_store_that_is_full_before_its_capacity_makes_room() -> None:
    index = PrefixIndex()
    chains(index, 50, 50)
    policy = eviction(index, blocks=1000)
    assert choose(policy) == []
    policy.found_full()
    assert len(choose(policy)) == 15
    assert choose(policy) == [], "until it is full again"


def test_nothing_more_is_chosen_for_room_while_blocks_are_being_deleted() -> None:
    index = PrefixIndex()
    chains(index, 100)
    policy = eviction(index, blocks=100)
    going = policy.choose(50.0, set)
    policy.found_full()
    chains(index, 1, 100)
    assert policy.choose(50.0, set) == []
    policy.deleted(going, 50.0)
    assert len(policy.choose(50.0, set)) == 185 - 85


def test_what_is_published_around_its_eviction_counts_once_the_store_was_asked() -> None:
    index = PrefixIndex()
    (keys,) = chains(index, 100)
    policy = Eviction(index, block_bytes=BLOCK_BYTES, now_s=0.0, capacity_bytes=100 * BLOCK_BYTES, doubt_s=20.0)
    going = policy.choose(50.0, set)
    first, second, third, *_ = going
    policy.published(first.key, first.parent, 50.0)
    assert policy.take_doubts() == [], "it is being deleted"
    policy.deleted(going, 51.0)
    policy.published(second.key, second.parent, 70.0)
    assert not {first.key, second.key} & {key for key in keys if key in index}
    assert policy.take_doubts() == [first, second]
    policy.settle([second])
    assert [block.key in index for block in (first, second)] == [False, True]
    policy.published(third.key, third.parent, 71.0)
    assert third.key in index
    assert policy.take_doubts() == []


def test_what_could_not_be_deleted_comes_back() -> None:
    index = PrefixIndex()
    (keys,) = chains(index, 100)
    policy = eviction(index, blocks=100)
    going = policy.choose(50.0, set)
    assert len(index) == 85
    policy.kept(going)
    assert index.longest_prefix(keys) == 100
    assert policy.evicted_blocks == 0
    assert len(choose(policy)) == 15


def test_blocks_that_were_lost_meanwhile_are_forgotten() -> None:
    index = PrefixIndex()
    (keys,) = chains(index, 200)
    policy = eviction(index, blocks=100)
    policy.used(keys, 1.0)
    for lost in keys[150:]:
        index.discard(lost)
    assert choose(policy) == keys[149:84:-1]
    assert set(policy._used_s) == set(keys[:85])


@given(
    parents=st.lists(st.integers(0, 30), min_size=30, max_size=30),
    uses=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 99)), max_size=40),
    in_use=st.sets(st.integers(1, 30), max_size=8),
    blocks=st.integers(1, 40),
)
def test_against_a_naive_model(parents: list[int], uses: list[tuple[int, int]], in_use: set[int], blocks: int) -> None:
    parent_of = {name: parent % name for name, parent in enumerate(parents, 1)}
    index = PrefixIndex()
    for name, parent in parent_of.items():
        index.add(key(name), key(parent))
    policy = eviction(index, blocks=blocks)
    used = dict.fromkeys(parent_of, 0)
    for name, at_s in uses:
        used[name] = at_s
        policy.used([key(name)], at_s)
    expected = []
    stored = set(parent_of)
    while len(parent_of) > HIGH_WATER * blocks and len(stored) > int(LOW_WATER * blocks):
        leaves = stored - {parent_of[name] for name in stored} - in_use
        if not leaves:
            break
        victim = min(leaves, key=lambda name: (used[name], name))
        stored.discard(victim)
        expected.append(key(victim))
    assert choose(policy, in_use={key(name) for name in in_use}) == expected


@pytest.mark.parametrize("branching", [1, 4])
def test_ten_thousand_of_a_hundred_thousand_blocks(branching: int) -> None:
    """Deciding holds up the scheduler: it must be quick."""
    raw = np.random.default_rng(0).bytes(32 * 100_000)
    keys = [raw[i : i + 32] for i in range(0, len(raw), 32)]
    index = PrefixIndex()
    index.add_many((name, ROOT if i == 0 else keys[(i - 1) // branching]) for i, name in enumerate(keys))
    policy = eviction(index, blocks=105_000)
    policy.used(keys, 1.0)
    start = time.process_time()
    assert len(policy.choose(50.0, lambda: set(keys[:1000]))) == 100_000 - int(LOW_WATER * 105_000)
    took_s = time.process_time() - start
    print(f"{took_s * 1e3:.0f} ms")
    assert took_s < 1
