"""Who may join, and who may ask for what."""

import pytest

from dualpath_scheduler.service import InvalidRequest, RegistrationRefused
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import CONTEXT, VOCAB, World, make_spec, node_info, prompt, tokens


def test_a_node_of_other_kv_is_refused_with_every_field_that_differs() -> None:
    world = World(nodes=["prefill-0", "decode-0"])
    with pytest.raises(RegistrationRefused) as refused:
        world.register("decode-1", identity={"weights_version": 2, "model_digest": "other"}, vocab_size=7)
    assert str(refused.value) == (
        "node 'decode-1' is refused: "
        "vocab_size is 7, but decode-0, prefill-0 have 100; "
        "model_digest is 'other', but decode-0, prefill-0 have 'model'; "
        "weights_version is 2, but decode-0, prefill-0 have 1"
    )
    assert [node.node_id for node in world.state.describe().nodes] == ["decode-0", "prefill-0"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"role": pb.ROLE_UNSPECIFIED}, "role is 0: expected ROLE_PREFILL or ROLE_DECODE"),
        ({"engines": 0}, "engines is 0: expected at least 1"),
        ({"max_context_tokens": 65}, "max_context_tokens is 65: this cluster's is 64"),
        ({"identity": {"block_tokens": 8}}, "block_tokens is 8: this cluster's is 4"),
        ({"decode_tokens": 63}, "decode_tokens is 63: expected at least 64, one request of max_context_tokens"),
    ],
)
def test_a_node_that_does_not_fit_the_spec_is_refused(fields: dict, text: str) -> None:
    world = World(nodes=[])
    with pytest.raises(RegistrationRefused) as refused:
        world.register("decode-0", **fields)
    assert str(refused.value) == f"node 'decode-0' is refused: {text}"


def test_an_older_life_does_not_come_back() -> None:
    world = World(nodes=[])
    world.register("decode-0", incarnation=5)
    with pytest.raises(RegistrationRefused, match="incarnation is 4: 5 has registered since; an older life must end"):
        world.register("decode-0", incarnation=4)
    world.later(5)
    assert not world.state.describe().nodes
    with pytest.raises(RegistrationRefused, match="incarnation is 4: 5 has registered since"):
        world.register("decode-0", incarnation=4)
    world.register("decode-0", incarnation=5)


def test_new_weights_may_come_when_all_nodes_are_gone() -> None:
    world = World(nodes=["prefill-0"])
    with pytest.raises(RegistrationRefused):
        world.register("decode-0", identity={"weights_version": 2})
    world.later(5)
    world.register("decode-0", identity={"weights_version": 2})
    world.register("prefill-0", incarnation=2, identity={"weights_version": 2})
    _, assignment = world.start()
    assert assignment.root_key == node_root(2)


def node_root(version: int) -> bytes:
    from dualpath_storage.keys import KVIdentity
    from tests.service.support import IDENTITY

    return KVIdentity(**{**IDENTITY, "weights_version": version}).root()


def test_fetches_and_reports_keep_a_node_alive() -> None:
    world = World(nodes=["prefill-0", "decode-0"])
    for _ in range(4):
        world.now += 3
        world.fetch("prefill-0")
        world.report("decode-0")
        world.state.tick(world.now)
    assert len(world.state.describe().nodes) == 2


def test_description() -> None:
    world = World(nodes=[])
    assert world.state.describe() == pb.DescribeReply(max_context_tokens=CONTEXT)
    world.register("prefill-0")
    world.submit()
    reply = world.state.describe()
    assert list(reply.nodes) == [node_info("prefill-0")]
    assert (reply.vocab_size, reply.max_context_tokens, reply.running_requests) == (VOCAB, CONTEXT, 1)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (prompt(0), "the prompt is empty: expected 1 to 63 tokens"),
        (
            prompt(64, max_tokens=1),
            "the prompt has 64 tokens: expected at most 63 (max_context_tokens 64, less one token to generate)",
        ),
        (
            prompt(10, max_tokens=0),
            "max_tokens = 0: expected 1 to 54 (max_context_tokens 64, less the prompt's 10)",
        ),
        (
            prompt(10, max_tokens=55),
            "max_tokens = 55: expected 1 to 54 (max_context_tokens 64, less the prompt's 10)",
        ),
        (prompt(tokens=[1, 2, 100]), "tokens[2] = 100: expected a token id in [0, 100)"),
        (prompt(tokens=[2**32 - 1]), "tokens[0] = 4294967295: expected a token id in [0, 100)"),
        (prompt(stop_tokens=[3, 101]), "stop_tokens[1] = 101: expected a token id in [0, 100)"),
        (
            prompt(max_tokens=2, forced_tokens=[1, 200]),
            "forced_tokens[1] = 200: expected a token id in [0, 100)",
        ),
        (
            prompt(max_tokens=3, forced_tokens=[1, 2]),
            "forced_tokens has 2 tokens: expected none or exactly max_tokens (3)",
        ),
        (
            prompt(sampling=pb.Sampling(temperature=-0.5)),
            "temperature = -0.5: expected a finite number of at least 0 (0 is greedy)",
        ),
        (
            prompt(sampling=pb.Sampling(temperature=float("nan"))),
            "temperature = nan: expected a finite number of at least 0 (0 is greedy)",
        ),
    ],
)
def test_requests_that_cannot_be_served_are_told_why(message: pb.GenerateRequest, text: str) -> None:
    world = World()
    with pytest.raises(InvalidRequest) as refused:
        world.submit(message)
    assert str(refused.value) == text
    assert world.state.describe().running_requests == 0


def test_the_limits_themselves_are_served() -> None:
    world = World()
    world.submit(prompt(63, max_tokens=1))
    world.submit(prompt(1, max_tokens=63, tokens=[VOCAB - 1]))


def test_an_id_can_run_once_at_a_time() -> None:
    world = World()
    request = world.submit(prompt(request_id="mine"))
    with pytest.raises(InvalidRequest, match="request_id 'mine' is running already"):
        world.submit(prompt(request_id="mine", tokens=tokens(3)))
    world.state.cancel(request, "enough", world.now)
    world.submit(prompt(request_id="mine"))


def test_node_limits_hold_once_nodes_are_there() -> None:
    world = World(make_spec(), nodes=[])
    world.submit(prompt(tokens=[99]))
    world.register("prefill-0", vocab_size=50)
    with pytest.raises(InvalidRequest, match=r"tokens\[0\] = 99: expected a token id in \[0, 50\)"):
        world.submit(prompt(tokens=[99]))
