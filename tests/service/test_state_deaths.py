"""Nodes that die, leave, come back or never come."""

import pytest

from dualpath_configs import MODES
from dualpath_scheduler.service import UnknownIncarnation
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import TWO_BY_TWO, World, events, failure, make_spec, prompt, publish, tokens


def test_a_dead_decode_node_is_replaced_and_the_client_notices_nothing() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(10, max_tokens=5, forced_tokens=[11, 12, 13, 14, 15]))
    world.say("prefill-0", assignment, 11)
    world.say("decode-0", assignment, 12)
    world.later(4.5, "prefill-0", "prefill-1", "decode-1")
    (cancellation,) = world.fetch("prefill-1").cancellations or world.fetch("prefill-0").cancellations
    assert (cancellation.request_id, cancellation.attempt) == (request.id, 1)
    assert "decode-0 died" in cancellation.reason

    again = world.dispatch("prefill-1", "decode-1")
    assert again.attempt == 2
    assert list(again.tokens) == [*tokens(10), 11, 12]
    assert again.max_tokens == 3
    assert list(again.forced_tokens) == [13, 14, 15]
    world.say("prefill-1", again, 13)
    world.say("decode-1", again, 14, 15, finished=True)
    generated, finished = events(request)
    assert generated == [11, 12, 13, 14, 15]
    assert not finished.error
    assert (finished.attempts, finished.prompt_tokens) == (2, 10)
    assert (finished.prefill_node, finished.decode_node) == ("prefill-1", "decode-1")


def test_a_dead_prefill_node_before_the_first_token() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, _ = world.start()
    world.later(4.5, "prefill-1", "decode-0", "decode-1")
    (cancellation,) = world.fetch("decode-0").cancellations
    assert cancellation.attempt == 1
    again = world.dispatch("prefill-1", "decode-0")
    assert (again.request_id, again.attempt) == (request.id, 2)
    assert list(again.tokens) == tokens(10)


def test_a_prefill_node_that_has_handed_over_may_die() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(max_tokens=3))
    world.say("prefill-0", assignment, 7)
    world.say("decode-0", assignment, 8)
    world.later(4.5, "prefill-1", "decode-0", "decode-1")
    assert not world.fetch("decode-0").cancellations
    world.say("decode-0", assignment, 9, finished=True)
    generated, finished = events(request)
    assert generated == [7, 8, 9]
    assert finished.attempts == 1


def test_tokens_that_were_held_back_for_a_lost_first_one_are_generated_again() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(max_tokens=3))
    world.say("decode-0", assignment, 8)
    world.later(4.5, "prefill-1", "decode-0", "decode-1")
    again = world.dispatch("prefill-1", "decode-0")
    assert again.max_tokens == 3
    world.say("prefill-1", again, 7)
    world.say("decode-0", again, 8, 9, finished=True)
    assert events(request)[0] == [7, 8, 9]


def test_a_new_incarnation_forgets_the_old_one() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, _ = world.start()
    world.register("decode-0", incarnation=2)
    again = world.dispatch("prefill-0", "decode-0")
    assert (again.request_id, again.attempt, again.decode_incarnation) == (request.id, 2, 2)
    with pytest.raises(UnknownIncarnation, match=r"incarnation 1 of node 'decode-0' is not registered \(incarnation 2"):
        world.state.report(pb.ReportRequest(node_id="decode-0", incarnation=1), world.now)


def test_a_node_that_registers_again_is_given_back_nothing_old() -> None:
    world = World()
    world.start()
    world.poll("decode-0")
    older = world.polls["decode-0"]
    world.register("decode-0")
    with pytest.raises(UnknownIncarnation, match="decode node decode-0 died"):
        world.state.close_poll(older)
    again = world.dispatch()
    assert again.attempt == 2


def test_a_node_that_leaves_is_not_waited_for() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, _ = world.start()
    world.state.unregister(pb.UnregisterRequest(node_id="prefill-0", incarnation=1, reason="drained"), world.now)
    again = world.dispatch("prefill-1", "decode-0")
    assert (again.request_id, again.attempt) == (request.id, 2)
    world.state.unregister(pb.UnregisterRequest(node_id="prefill-0", incarnation=1), world.now)


def test_what_was_not_yet_assigned_costs_no_attempt_when_its_node_dies() -> None:
    world = World(nodes=TWO_BY_TWO)
    request = world.submit()
    world.fetch("prefill-0")
    world.later(4.5, "prefill-1", "decode-0", "decode-1")
    again = world.dispatch("prefill-1", "decode-0")
    assert (again.request_id, again.attempt) == (request.id, 1)


def test_what_waits_for_a_decode_group_goes_to_another_when_it_dies() -> None:
    world = World(nodes=["prefill-0", "decode-0", "decode-1"])
    requests = [world.submit(prompt(8)) for _ in range(2)]
    world.poll("prefill-0")
    (kept,) = world.fetch("decode-1").assignments
    world.later(4.5, "prefill-0", "decode-1")
    (moved,) = world.fetch("decode-1").assignments
    assert {kept.request_id, moved.request_id} == {request.id for request in requests}
    assert moved.attempt == 1


def test_a_retry_finds_what_the_first_attempt_has_stored() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(10, max_tokens=5))
    world.say("prefill-0", assignment, 11)
    world.say("decode-0", assignment, 12, 13)
    publish(world, [*tokens(10), 11, 12])
    world.later(4.5, "prefill-0", "prefill-1", "decode-1")
    again = world.dispatch("prefill-0", "decode-1")
    assert again.prefill_side_blocks + again.decode_side_blocks == 3
    world.say("prefill-0", again, 14, hit_tokens=12)
    world.say("decode-1", again, 15, finished=True)
    assert events(request)[1].hit_tokens == 10, "what was generated is no hit of the prompt"


@pytest.mark.parametrize("mode", ["basic", "dualpath"])
def test_a_node_that_hung_up_gets_nothing_until_it_polls_again(mode: str) -> None:
    world = World(make_spec(mode=MODES[mode]), nodes=TWO_BY_TWO)
    for name in ("prefill-0", "decode-0"):
        world.poll(name)
        world.state.drop_poll(world.polls.pop(name))
    for _ in range(3):
        world.submit()
    world.poll("prefill-1")
    assert len(world.fetch("decode-1").assignments) == 3
    assert len(world.collect("prefill-1").assignments) == 3
    world.fetch("prefill-0")
    assert not world.fetch("decode-0").assignments
    for _ in range(4):
        world.submit()
    world.poll("prefill-0")
    world.poll("decode-0")
    assert world.collect("decode-0").assignments


def test_without_a_node_of_a_role_the_request_fails_and_names_the_dead() -> None:
    world = World(nodes=["prefill-0", "decode-0", "decode-1"])
    request, _ = world.start()
    world.later(4.5, "decode-0", "decode-1")
    assert events(request) == ([], None)
    world.later(6.0, "decode-0", "decode-1")
    assert events(request) == ([], None)
    world.later(2.0, "decode-0", "decode-1")
    text = failure(request)
    assert "no prefill node lives: prefill node prefill-0 died at 2027-01-15T08:01:44" in text
    assert "silent for 4.5 s, its lease is 4 s" in text
    newcomer = world.submit()
    world.later(6.5, "decode-0", "decode-1")
    assert events(newcomer) == ([], None), "its own grace counts from its arrival"
    world.later(1.0, "decode-0", "decode-1")
    assert "no prefill node lives" in failure(newcomer)


def test_a_cluster_without_nodes_says_so() -> None:
    world = World(nodes=[])
    request = world.submit()
    world.later(7.5)
    assert "no prefill node lives: none has registered so far; start one with --role=prefill" in failure(request)


def test_a_node_that_comes_in_time_saves_the_request() -> None:
    world = World(nodes=["decode-0"])
    request = world.submit()
    world.later(6.0, "decode-0")
    world.register("prefill-0")
    world.later(6.0, "decode-0", "prefill-0")
    assert world.dispatch().request_id == request.id


def test_a_stop_token_that_is_out_ends_the_request_when_the_node_dies() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(max_tokens=9, stop_tokens=[8]))
    world.say("prefill-0", assignment, 7)
    world.say("decode-0", assignment, 8)
    world.later(4.5, "prefill-0", "prefill-1", "decode-1")
    generated, finished = events(request)
    assert generated == [7, 8]
    assert not finished.error
