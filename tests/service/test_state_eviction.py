"""Eviction in the scheduler: what counts as use, what is being read, and what full disks lead to."""

from dualpath_configs import StorageSpec
from dualpath_scheduler.service.kv_layout import layout_of
from dualpath_storage.block_format import HEADER_BYTES
from tests.service.support import BLOCK, World, make_spec, prompt, publish, tokens


def world_of(blocks: int | None, **storage: object) -> World:
    """A cluster whose store may hold so many blocks."""
    spec = make_spec()
    if blocks is not None:
        storage["capacity_bytes"] = blocks * (HEADER_BYTES + layout_of(spec).block_bytes)
    return World(spec.model_copy(update={"storage": StorageSpec(**storage)}))


def evict(world: World) -> list[bytes]:
    blocks = world.state.evict(world.now)
    world.state.evicted(blocks, world.now)
    return [block.key for block in blocks]


def test_a_full_store_gives_up_leaves_the_longest_unused_first() -> None:
    world = world_of(20)
    old = publish(world, tokens(10 * BLOCK))
    world.now += 1
    young = publish(world, tokens(10 * BLOCK, start=50))
    assert evict(world) == [old[9], old[8], old[7]]
    assert evict(world) == []
    assert len(world.index) == 17
    assert world.state.describe().evicted_blocks == 3
    assert world.index.longest_prefix(young) == 10


def test_a_read_is_a_use_and_a_look_up_is_not() -> None:
    world = world_of(20)
    read = publish(world, tokens(10 * BLOCK))
    world.now += 1
    looked_up = publish(world, tokens(10 * BLOCK, start=50))
    world.now += 1
    request, assignment = world.start(prompt(tokens=tokens(10 * BLOCK + 1)))
    world.say("prefill-0", assignment, 1)
    world.say("decode-0", assignment, 2, 3, finished=True)
    assert request.done
    world.now += 1
    waiting = world.submit(prompt(tokens=tokens(10 * BLOCK + 1, start=50)))
    world.state.tick(world.now)
    assert waiting.attempt is None
    assert evict(world) == [looked_up[9], looked_up[8], looked_up[7]]
    assert world.index.longest_prefix(read) == 10


def test_blocks_that_an_attempt_is_to_read_stay_until_its_first_token() -> None:
    world = world_of(20)
    read = publish(world, tokens(10 * BLOCK))
    _, assignment = world.start(prompt(tokens=tokens(10 * BLOCK + 1)))
    world.now += 1
    other = publish(world, tokens(10 * BLOCK, start=50))
    assert evict(world) == [other[9], other[8], other[7]]
    world.say("decode-0", assignment)
    publish(world, tokens(10 * BLOCK, start=50))
    world.state.settle(world.state.doubts())
    world.say("prefill-0", assignment, 1)
    assert evict(world) == [read[9], read[8], read[7]]


def test_a_prefix_that_was_given_up_is_not_planned_any_more() -> None:
    world = world_of(20)
    publish(world, tokens(10 * BLOCK))
    world.now += 1
    publish(world, tokens(10 * BLOCK, start=50))
    blocks = world.state.evict(world.now)
    _, assignment = world.start(prompt(tokens=tokens(10 * BLOCK + 1)))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 7, "before anything is deleted"
    world.state.not_evicted(blocks)
    assert len(world.index) == 20


def test_a_full_disk_makes_room_where_there_is_a_capacity() -> None:
    for blocks, gone in ((1000, 3), (None, 0)):
        world = world_of(blocks)
        publish(world, tokens(20 * BLOCK))
        assert evict(world) == []
        world.report("decode-0", full_writes=4)
        assert len(evict(world)) == gone


def test_blocks_expire() -> None:
    world = world_of(None, time_to_live_s=60.0)
    keys = publish(world, tokens(10 * BLOCK))
    world.later(50, "prefill-0", "decode-0")
    assert evict(world) == []
    publish(world, tokens(4 * BLOCK))
    world.later(20, "prefill-0", "decode-0")
    assert evict(world) == keys[:3:-1]
    assert len(world.index) == 4


def test_a_block_that_is_published_around_its_eviction_is_asked_for() -> None:
    world = world_of(20)
    publish(world, tokens(20 * BLOCK))
    gone = evict(world)
    publish(world, tokens(20 * BLOCK))
    assert len(world.index) == 17
    doubts = world.state.doubts()
    assert {block.key for block in doubts} == set(gone)
    world.state.settle(doubts[:1])
    assert len(world.index) == 18
    assert world.state.doubts() == []
