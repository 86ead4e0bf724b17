"""What NIXL is told of memory, and what is forgotten."""

import gc
import mmap

import numpy as np
import pytest

from dualpath_jax.transfer.nixl_memory import MOST_EXTENTS, Extent, KnownMemory, MemoryConflictError, address_of


def whole(array):
    return Extent(array.ctypes.data, array.nbytes)


def test_all_views_of_an_arena_are_one_extent():
    arena, memory = np.zeros(1 << 16, np.uint8), KnownMemory()
    slots = arena[64:].reshape(-1, 64)
    assert memory.learn([slots[3, 8:16].data, slots[5].data]) == ([whole(arena)], [])
    assert memory.learn([slots[9].data, arena[:10].data]) == ([], [])


def test_views_of_one_mapping_by_different_arrays_are_registered_once():
    memory, mapping = KnownMemory(), mmap.mmap(-1, 1 << 16)
    first = np.frombuffer(mapping, np.uint8)
    assert memory.learn([first[:10].data]) == ([whole(first)], [])
    memory.tell()
    second = np.frombuffer(mapping, np.uint8)[100:]
    assert memory.learn([second.data]) == ([], [])
    del first
    gc.collect()
    other = np.zeros(10, np.uint8)
    assert memory.learn([other.data]) == ([whole(other)], [])  # the second array lies there still


def test_what_has_gone_is_deregistered_and_only_a_new_agent_can_take_what_lies_where_peers_know_of_it():
    mapping = mmap.mmap(-1, 1 << 16)
    for told in (False, True):
        memory = KnownMemory()
        first = np.frombuffer(mapping, np.uint8)
        there = whole(first)
        memory.learn([first.data])
        if told:
            memory.tell()
        del first
        gc.collect()
        second = np.frombuffer(mapping, np.uint8)
        if told:
            with pytest.raises(MemoryConflictError):
                memory.learn([second.data])
        else:
            assert memory.learn([second.data]) == ([there], [there])


def test_what_cannot_be_watched_is_held():
    memory, source = KnownMemory(), bytearray(100)
    ((extent,), _) = memory.learn([memoryview(source)[10:20]])
    assert (extent.address, extent.size_bytes) == (address_of(memoryview(source)), 100)
    assert memory.learn([memoryview(source)[50:]]) == ([], [])


def test_there_is_a_most_but_for_the_first_batch():
    arrays = [np.zeros(8, np.uint8) for _ in range(MOST_EXTENTS + 2)]
    memory = KnownMemory()
    assert len(memory.learn([array.data for array in arrays])[0]) == MOST_EXTENTS + 2
    with pytest.raises(MemoryConflictError):
        memory.learn([np.zeros(8, np.uint8).data])


def test_addresses_of_writable_and_of_read_only_memory():
    array = np.zeros(100, np.uint8)
    view = array[10:].data
    assert address_of(view) == address_of(view.toreadonly()) == array.ctypes.data + 10
    view.release()
    with pytest.raises(ValueError, match="released"):
        address_of(view)
