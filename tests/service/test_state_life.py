"""The life of a request in the state machine, from submission to its last event."""

import pytest

from dualpath_configs import MODES
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import EPOCH_S, World, events, make_spec, prompt, publish, root, said, tokens


def test_a_whole_life() -> None:
    world = World()
    publish(world, tokens(8))
    request = world.submit(prompt(10, max_tokens=3, request_id="mine"))
    arrival = EPOCH_S + world.now
    world.now += 1
    assignment = world.dispatch()
    assert (assignment.request_id, assignment.attempt) == ("mine", 1)
    assert list(assignment.tokens) == tokens(10)
    assert (assignment.prefill_side_blocks, assignment.decode_side_blocks) == (2, 0)
    assert assignment.root_key == root()
    assert (assignment.prefill_node, assignment.prefill_address) == ("prefill-0", "prefill-0:1")
    assert (assignment.decode_node, assignment.decode_address) == ("decode-0", "decode-0:1")
    assert (assignment.prefill_incarnation, assignment.decode_incarnation) == (1, 1)
    assert events(request) == ([], None)

    world.say("decode-0", assignment, timings=pb.Timings(read_start=10, read_end=15))
    reading = pb.Timings(read_start=20, read_end=30, prefill_start=31, first_token=32)
    world.say("prefill-0", assignment, 7, timings=reading, hit_tokens=4, recomputed_blocks=1)
    assert events(request) == ([7], None)
    world.say("decode-0", assignment, 8)
    world.now += 1
    world.say("decode-0", assignment, 9, finished=True, timings=pb.Timings(end=40))
    generated, finished = events(request)
    assert generated == [8, 9]
    assert finished == pb.Finished(
        timings=pb.Timings(
            arrival=arrival,
            assigned=arrival + 1,
            read_start=10,
            read_end=30,
            prefill_start=31,
            first_token=32,
            end=40,
        ),
        prompt_tokens=10,
        hit_tokens=4,
        planned_prefill_side_blocks=2,
        recomputed_blocks=1,
        prefill_node="prefill-0",
        decode_node="decode-0",
        attempts=1,
    )
    assert world.state.describe().running_requests == 0


def test_the_assignment_carries_everything_that_was_asked() -> None:
    world = World()
    message = prompt(
        10,
        max_tokens=2,
        sampling=pb.Sampling(temperature=0.5, seed=9),
        stop_tokens=[5],
        forced_tokens=[3, 4],
        tenant_salt="acme",
    )
    _, assignment = world.start(message)
    assert assignment.sampling == message.sampling
    assert list(assignment.stop_tokens) == [5]
    assert list(assignment.forced_tokens) == [3, 4]
    assert assignment.max_tokens == 2
    assert assignment.root_key == root("acme")


def test_a_hit_leaves_the_last_token_to_compute() -> None:
    world = World()
    publish(world, tokens(12))
    _, assignment = world.start(prompt(12))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 2
    _, assignment = world.start(prompt(13))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 3
    _, assignment = world.start(prompt(1))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 0


def test_the_index_is_asked_at_the_moment_of_assignment() -> None:
    world = World()
    world.submit(prompt(12))
    world.poll("prefill-0")
    publish(world, tokens(8))
    world.poll("decode-0")
    (assignment,) = world.collect("decode-0").assignments
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 2


def test_a_lost_key_ends_the_prefix_at_once() -> None:
    world = World()
    keys = publish(world, tokens(16))
    world.report("decode-0", lost=[keys[1]])
    _, assignment = world.start(prompt(16))
    assert assignment.prefill_side_blocks == 1
    assert world.state.describe().indexed_blocks == 3


def test_tenants_share_nothing() -> None:
    world = World()
    publish(world, tokens(8), salt="acme")
    _, assignment = world.start(prompt(12))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 0
    _, assignment = world.start(prompt(12, tenant_salt="acme"))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 2


def test_the_sides_may_report_in_any_order() -> None:
    world = World()
    request, assignment = world.start(prompt(max_tokens=3))
    world.say("decode-0", assignment, 8)
    world.say("decode-0", assignment, 9, finished=True)
    assert events(request) == ([], None)
    world.say("prefill-0", assignment, 7)
    generated, finished = events(request)
    assert generated == [7, 8, 9]
    assert finished is not None
    assert not finished.error


def test_nothing_is_assigned_before_both_groups_fetch() -> None:
    world = World()
    world.submit()
    assert not world.fetch("prefill-0").assignments
    assert not world.fetch("prefill-0").assignments
    world.poll("decode-0")
    assert len(world.collect("decode-0").assignments) == 1
    assert len(world.fetch("prefill-0").assignments) == 1


def test_a_poll_that_is_open_gets_what_comes_later() -> None:
    world = World()
    world.poll("prefill-0")
    world.poll("decode-0")
    assert not world.polls["prefill-0"].answered
    world.submit()
    assert world.polls["prefill-0"].answered
    assert world.polls["decode-0"].answered


def test_a_newer_poll_answers_the_older_with_nothing() -> None:
    world = World()
    world.poll("prefill-0")
    older = world.polls["prefill-0"]
    world.poll("prefill-0")
    assert older.answered
    world.poll("decode-0")
    world.submit()
    assert not world.state.close_poll(older).assignments
    assert len(world.collect("prefill-0").assignments) == 1


def test_an_assignment_is_sent_again_until_it_has_arrived() -> None:
    world = World()
    world.submit()
    world.poll("prefill-0")
    world.fetch("decode-0")
    first = world.collect("prefill-0")
    world.received["prefill-0"] = 0  # the reply got lost
    again = world.fetch("prefill-0")
    assert list(again.assignments) == list(first.assignments)
    assert not world.fetch("prefill-0").assignments


def test_a_report_that_comes_twice_counts_once() -> None:
    world = World()
    request, assignment = world.start()
    progress = pb.Progress(request_id=request.id, attempt=1, tokens=said(7))
    assert assignment.attempt == 1
    for _ in range(2):
        world.report("prefill-0", progress, serial=5)
    assert events(request) == ([7], None)
    progress = pb.Progress(request_id=request.id, attempt=1, tokens=said(8))
    for serial in (3, 3, 4):
        world.report("decode-0", progress, serial=serial)
    assert events(request) == ([8, 8], None)


def test_serials_grow_over_assignments_and_cancellations() -> None:
    world = World()
    first, one = world.start()
    world.state.cancel(first, "enough", world.now)
    (cancellation,) = world.fetch("prefill-0").cancellations
    _, two = world.start()
    assert 0 < one.serial < cancellation.serial < two.serial


def test_serials_grow_over_lives_of_the_node_and_of_the_scheduler() -> None:
    world = World()
    _, first = world.start()
    world.now += 1
    world.register("prefill-0")
    second = world.dispatch()
    successor = World()
    successor.now = world.now + 1
    successor.register("prefill-0")
    _, third = successor.start()
    assert first.serial < second.serial < third.serial


def test_a_poll_that_was_dropped_gets_nothing_assigned() -> None:
    world = World()
    world.poll("prefill-0")
    world.state.drop_poll(world.polls["prefill-0"])
    world.submit()
    world.poll("decode-0")
    assert not world.collect("decode-0").assignments


def test_requests_without_an_id_get_one_of_their_own() -> None:
    world = World()
    ids = {world.submit().id for _ in range(3)}
    assert len(ids) == 3
    assert all(ids)


@pytest.mark.parametrize("mode", ["basic", "dualpath", "oracle"])
def test_first_in_first_out(mode: str) -> None:
    world = World(make_spec(mode=MODES[mode]))
    requests = [world.submit() for _ in range(4)]
    world.poll("prefill-0")
    world.poll("decode-0")
    ids = [assignment.request_id for assignment in world.collect("prefill-0").assignments]
    assert ids == [request.id for request in requests]
    assert [a.request_id for a in world.collect("decode-0").assignments] == ids
