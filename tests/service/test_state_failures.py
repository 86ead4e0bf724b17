"""Attempts that fail, clients that leave, deadlines that pass."""

import pytest

from tests.service.support import BLOCK, TWO_BY_TWO, World, events, failure, make_spec, prompt, publish, tokens


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


def test_a_retry_stands_in_front_of_what_came_later() -> None:
    world = World(make_spec(beta_tokens=1))
    first, assignment = world.start()
    later = [world.submit() for _ in range(3)]
    world.say("prefill-0", assignment, error="a hiccup")
    world.poll("prefill-0")
    world.poll("decode-0")
    ids = [a.request_id for a in world.collect("decode-0").assignments]
    assert ids == [first.id, later[0].id]


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


def test_the_last_retry_reads_nothing_from_storage() -> None:
    """A store on which every read goes wrong costs a request its hits, and never its last attempt."""
    world = World(make_spec(max_attempts=3))
    publish(world, tokens(4 * BLOCK))
    _, assignment = world.start(prompt(tokens=tokens(4 * BLOCK + 1)))
    planned = []
    for _ in range(3):
        planned.append(assignment.prefill_side_blocks + assignment.decode_side_blocks)
        world.say("decode-0", assignment, error="a block is late and its buffer is still being written to")
        world.later(4.0, "prefill-0", "decode-0")
        assignment = world.dispatch() if len(planned) < 3 else assignment
    assert planned == [4, 4, 0]


def test_an_only_attempt_reads_what_is_stored() -> None:
    world = World(make_spec(max_attempts=1))
    publish(world, tokens(4 * BLOCK))
    _, assignment = world.start(prompt(tokens=tokens(4 * BLOCK + 1)))
    assert assignment.prefill_side_blocks + assignment.decode_side_blocks == 4


def test_a_resting_request_can_be_cancelled() -> None:
    world = World(make_spec(max_attempts=2))
    request, assignment = world.start()
    world.say("prefill-0", assignment, error="the peer refuses")
    world.state.cancel(request, "enough", world.now)
    world.later(9.0, "prefill-0", "decode-0")
    world.poll("prefill-0")
    assert not world.fetch("decode-0").assignments
    assert not world.collect("prefill-0").assignments


def test_a_fatal_error_is_not_retried() -> None:
    world = World()
    request, assignment = world.start()
    world.say("prefill-0", assignment, error="the model rejects it", fatal=True)
    assert "attempt 1 of 3: node prefill-0: the model rejects it" in failure(request)
    assert world.state.describe().running_requests == 0


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
