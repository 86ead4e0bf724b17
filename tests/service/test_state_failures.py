"""Nodes that die, attempts that fail, clients that leave, deadlines that pass."""

import pytest

from dualpath_configs import MODES
from dualpath_scheduler.service import UnknownIncarnation
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import World, events, make_spec, prompt, tokens
from tests.service.test_state_life import publish

TWO_BY_TWO = ["prefill-0", "prefill-1", "decode-0", "decode-1"]


def failure(request) -> str:
    _, finished = events(request)
    assert finished is not None
    assert finished.error
    return finished.error


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


def test_reports_of_an_older_attempt_are_dropped() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(max_tokens=3))
    world.say("prefill-0", assignment, error="the peer went away")
    again = world.dispatch("prefill-1", "decode-0")
    assert again.attempt == 2
    world.say("decode-0", assignment, 55, finished=True)
    world.say("prefill-0", assignment, 54, error="late", fatal=True)
    assert events(request) == ([], None)
    world.say("prefill-0", again, 53)
    assert events(request) == ([], None), "prefill-0 has no part in attempt 2"
    world.say("prefill-1", again, 7)
    assert events(request) == ([7], None)


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


def test_a_retry_stands_in_front_of_what_came_later() -> None:
    world = World(make_spec(beta_tokens=1))
    first, assignment = world.start()
    later = [world.submit() for _ in range(3)]
    world.say("prefill-0", assignment, error="a hiccup")
    world.poll("prefill-0")
    world.poll("decode-0")
    ids = [a.request_id for a in world.collect("decode-0").assignments]
    assert ids == [first.id, later[0].id]


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


def test_after_the_last_attempt_the_request_fails_with_the_reason() -> None:
    world = World(make_spec(max_attempts=2))
    request, assignment = world.start()
    world.say("decode-0", assignment, error="no pages")
    assert events(request) == ([], None)
    world.later(4.0, "prefill-0", "decode-0")
    again = world.dispatch()
    world.say("decode-0", again, error="no pages")
    assert failure(request) == f"request {request.id} failed: attempt 2 of 2: node decode-0: no pages"
    (cancellation,) = world.fetch("prefill-0").cancellations
    assert cancellation.attempt == 2


def test_the_last_attempt_waits_until_a_dead_node_would_be_known() -> None:
    """Errors that a dead node causes at its peers come at once, and must not use up all attempts within its lease."""
    world = World(make_spec(max_attempts=3))
    request, assignment = world.start()
    world.say("prefill-0", assignment, error="the peer refuses")
    again = world.dispatch()
    world.say("prefill-0", again, error="the peer refuses")
    world.poll("prefill-0")
    world.poll("decode-0")
    assert not world.collect("prefill-0").assignments
    assert not world.collect("decode-0").assignments
    assert world.state.describe().running_requests == 1
    world.later(4.0, "prefill-0", "decode-0")
    assert world.dispatch().request_id == request.id


def test_a_resting_request_can_be_cancelled() -> None:
    world = World(make_spec(max_attempts=2))
    request, assignment = world.start()
    world.say("prefill-0", assignment, error="the peer refuses")
    world.state.cancel(request, "enough", world.now)
    world.later(9.0, "prefill-0", "decode-0")
    world.poll("prefill-0")
    assert not world.fetch("decode-0").assignments
    assert not world.collect("prefill-0").assignments


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


def test_a_fatal_error_is_not_retried() -> None:
    world = World()
    request, assignment = world.start()
    world.say("prefill-0", assignment, error="the model rejects it", fatal=True)
    assert "attempt 1 of 3: node prefill-0: the model rejects it" in failure(request)
    assert world.state.describe().running_requests == 0


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


def test_all_tokens_out_is_success_whatever_comes_after() -> None:
    world = World()
    request, assignment = world.start(prompt(max_tokens=2))
    world.say("prefill-0", assignment, 7)
    world.say("decode-0", assignment, 8)
    world.say("decode-0", assignment, error="died of joy")
    generated, finished = events(request)
    assert generated == [7, 8]
    assert not finished.error
    assert (finished.decode_node, finished.attempts) == ("decode-0", 1)


def test_a_stop_token_that_is_out_ends_the_request_when_the_node_dies() -> None:
    world = World(nodes=TWO_BY_TWO)
    request, assignment = world.start(prompt(max_tokens=9, stop_tokens=[8]))
    world.say("prefill-0", assignment, 7)
    world.say("decode-0", assignment, 8)
    world.later(4.5, "prefill-0", "prefill-1", "decode-1")
    generated, finished = events(request)
    assert generated == [7, 8]
    assert not finished.error


def test_a_client_that_leaves_frees_both_nodes() -> None:
    world = World()
    request, _ = world.start()
    world.state.cancel(request, "the client has gone away", world.now)
    for name in ("prefill-0", "decode-0"):
        (cancellation,) = world.fetch(name).cancellations
        assert (cancellation.request_id, cancellation.attempt) == (request.id, 1)
        assert cancellation.reason == "the client has gone away"
    assert events(request)[1].cancelled
    assert world.state.describe().running_requests == 0
    world.state.cancel(request, "again", world.now)


def test_what_was_never_sent_is_taken_back_instead_of_cancelled() -> None:
    world = World()
    world.poll("prefill-0")
    world.poll("decode-0")
    request = world.submit()
    world.state.cancel(request, "the client has gone away", world.now)
    for name in ("prefill-0", "decode-0"):
        reply = world.collect(name)
        assert not reply.assignments
        assert not reply.cancellations


def test_a_waiting_request_can_be_cancelled_anywhere() -> None:
    world = World(nodes=["prefill-0", "decode-0", "decode-1"])
    for stage in range(3):
        requests = [world.submit(prompt(8)) for _ in range(2)]
        if stage:
            world.fetch("prefill-0")
        if stage == 2:
            world.fetch("decode-0")
        for request in requests:
            world.state.cancel(request, "no more", world.now)
        assert world.state.describe().running_requests == 0
        for name in ("decode-0", "decode-1"):
            world.fetch(name)
        assert not world.fetch("prefill-0").assignments


@pytest.mark.parametrize(
    ("polls", "where"),
    [
        ([], "waits for a prefill engine"),
        (["prefill-0"], "waits for a decode engine, prefill-0 is to prefill it"),
        (["prefill-0", "decode-0"], "attempt 1 runs on prefill-0 and decode-0"),
    ],
)
def test_a_deadline_says_where_the_request_was(polls: list[str], where: str) -> None:
    world = World(make_spec(request_deadline_s=20.0))
    request = world.submit()
    for name in polls:
        world.fetch(name)
    world.later(20.0, "prefill-0", "decode-0")
    assert events(request) == ([], None)
    world.later(1.0, "prefill-0", "decode-0")
    assert failure(request).endswith(f"not done within request_deadline_s = 20 ({where})")


def test_closing_ends_everything() -> None:
    world = World()
    running, _ = world.start()
    waiting = world.submit()
    world.state.close("going down", world.now)
    for request in (running, waiting):
        _, finished = events(request)
        assert (finished.error, finished.cancelled) == ("going down", True)


def test_nothing_is_kept_of_finished_requests() -> None:
    """Memory stays bounded: a thousand requests in all possible ways, and no container has grown."""
    world = World(make_spec(max_attempts=1), nodes=["prefill-0", "decode-0"])

    def sizes() -> list[int]:
        state = world.state
        nodes = state._registry.live()
        return [
            len(state._lifecycle._requests),
            len(state._dispatcher._requests),
            len(state._dispatcher._for_prefill),
            len(state._dispatcher._for_decode),
            *(len(node.promises) + len(node.queue) + len(node.outbox._messages) for node in nodes),
        ]

    def churn() -> None:
        for kind in range(4):
            request, assignment = world.start()
            if kind == 0:
                world.say("prefill-0", assignment, 1)
                world.say("decode-0", assignment, 2, 3, finished=True)
            elif kind == 1:
                world.say("prefill-0", assignment, error="no")
            elif kind == 2:
                world.state.cancel(request, "no", world.now)
            else:
                world.register("prefill-0", incarnation=world.incarnations["prefill-0"] + 1)
            world.fetch("prefill-0")
            world.fetch("decode-0")
        world.fetch("prefill-0")
        world.fetch("decode-0")

    churn()
    before = sizes()
    for _ in range(250):
        churn()
    assert sizes() == before == [0, 0, 0, 0, 0, 0]
