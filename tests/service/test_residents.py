"""What the scheduler remembers of nodes' memory, and what its read plans make of it."""

from dualpath_configs import ModeSpec
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.residents import Residents
from tests.service.support import BLOCK, World, make_spec, prompt, publish, tokens

KEYS = [bytes([value]) * 32 for value in range(10)]


def queues(read_q_tokens: int) -> pb.QueueReport:
    return pb.QueueReport(read_q_tokens=read_q_tokens, engines=[pb.EngineReport(free_tokens=640)] * 2)


def plan(world: World, *, keep: bool = False) -> tuple[int, int]:
    """The plan of a request with five hit blocks, which then ends or is kept."""
    request, assignment = world.start(prompt(tokens=tokens(5 * BLOCK + 1)))
    if not keep:
        world.state.cancel(request, "only asked", world.now)
    return assignment.prefill_side_blocks, assignment.decode_side_blocks


def test_leading_keys_end_at_the_first_gap() -> None:
    residents = Residents()
    residents.update(KEYS[:3] + KEYS[4:6], [])
    assert [residents.leading(KEYS), residents.leading(KEYS[4:]), residents.leading([])] == [3, 2, 0]
    assert residents.absent(KEYS[:7]) == 2
    residents.update([], [KEYS[0], KEYS[9]])
    assert residents.leading(KEYS) == 0


def test_no_more_keys_than_the_most_are_remembered() -> None:
    residents = Residents(most_keys=4)
    residents.update(KEYS[:4], [])
    residents.update([KEYS[0], KEYS[5], KEYS[6]], [])
    assert len(residents) == 4
    assert residents.absent([KEYS[0], KEYS[3], KEYS[5], KEYS[6]]) == 0


def test_blocks_in_a_nodes_memory_are_read_there() -> None:
    world = World()
    keys = publish(world, tokens(5 * BLOCK))
    assert plan(world) == (5, 0)
    world.report("decode-0", resident_added=keys[3:])
    assert plan(world) == (3, 2)
    world.report("prefill-0", resident_added=keys[:3], queues=queues(100))
    assert plan(world) == (3, 2)
    world.report("decode-0", resident_dropped=keys[4:])
    world.report("prefill-0", resident_added=[keys[3]], queues=queues(100))
    assert plan(world) == (4, 1)


def test_what_lies_in_memory_does_not_count_as_a_read_that_waits() -> None:
    world = World()
    keys = publish(world, tokens(5 * BLOCK))
    world.report("prefill-0", resident_added=keys[:4])
    assert plan(world, keep=True) == (5, 0)
    world.report("decode-0", queues=queues(BLOCK - 1))
    # One block waits at the prefill node, not five: the decode side has the shorter queue by one token.
    assert plan(world) == (4, 1)
    world.report("decode-0", queues=queues(BLOCK))
    assert plan(world) == (5, 0)


def test_a_new_life_of_a_node_has_nothing_in_memory() -> None:
    world = World()
    keys = publish(world, tokens(5 * BLOCK))
    world.report("decode-0", resident_added=keys)
    assert plan(world) == (0, 5)
    world.register("decode-0", incarnation=2)
    assert plan(world) == (5, 0)


def test_a_report_that_comes_again_counts_once() -> None:
    world = World()
    keys = publish(world, tokens(5 * BLOCK))
    world.report("decode-0", resident_added=keys, serial=1)
    world.report("decode-0", resident_dropped=keys, serial=2)
    world.report("decode-0", resident_added=keys, serial=1)
    assert plan(world) == (5, 0)


def test_one_path_stays_one_path() -> None:
    world = World(make_spec(mode=ModeSpec(dual_path=False)))
    keys = publish(world, tokens(5 * BLOCK))
    world.report("decode-0", resident_added=keys)
    assert plan(world) == (5, 0)
