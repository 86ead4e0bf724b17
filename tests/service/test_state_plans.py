"""The policies beyond the paper, as the service calls them: on its own snapshots, where the spec names them."""

import pytest

from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.service.support import BLOCK, World, make_spec, prompt, publish, tokens

HIT = 10
NODES = ("prefill-0", "decode-0")


def world(*, prefill: dict[str, float] | None = None, decode: dict[str, float] | None = None, **scheduling) -> World:
    """One node of each role, whose cards read a block a second unless something else is said."""
    made = World(make_spec(**scheduling), nodes=())
    for name, fields in zip(NODES, (prefill, decode), strict=True):
        made.register(name, **{"snic_tokens_per_s": BLOCK, **(fields or {})})
    publish(made, tokens(HIT * BLOCK))
    return made


def queues(tok: int = 0, *, read_blocks: int = 0) -> pb.QueueReport:
    engines = [pb.EngineReport(seq=int(tok > 0), tok=tok, free_tokens=128)] * 2
    return pb.QueueReport(read_q_tokens=read_blocks * BLOCK, engines=engines)


def plan(made: World) -> tuple[int, int]:
    _, assignment = made.start(prompt(tokens=tokens(HIT * BLOCK + 1)))
    return assignment.prefill_side_blocks, assignment.decode_side_blocks


@pytest.mark.parametrize(
    ("read_plan", "expected"),
    [
        ("paper", (0, 10)),
        ("shorter-queue", (0, 10)),
        ("split", (3, 7)),
        ("prefill-only", (10, 0)),
        ("alternate", (10, 0)),
    ],
)
def test_the_spec_names_the_read_plan(read_plan, expected):
    made = world(read_plan=read_plan)
    made.report("prefill-0", queues=queues(read_blocks=4))
    assert plan(made) == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "layers_per_group", "expected"),
    [
        ({"snic_tokens_per_s": 4.0 * BLOCK}, {}, 1, (8, 2)),
        ({}, {"snic_tokens_per_s": 0.0}, 1, (0, 10)),  # no limit there
        # A hop at the rate of the card: a block of the decode side takes 2 s, or 1.5 s where half of it is waited for.
        ({"cnic_tokens_per_s": BLOCK}, {}, 2, (7, 3)),
        ({"cnic_tokens_per_s": BLOCK}, {}, 1, (6, 4)),
        ({}, {"cnic_tokens_per_s": BLOCK}, 1, (6, 4)),
    ],
)
def test_a_split_knows_the_rates(prefill, decode, layers_per_group, expected):
    assert plan(world(prefill=prefill, decode=decode, read_plan="split", layers_per_group=layers_per_group)) == expected


def test_a_split_counts_what_it_has_planned():
    made = world(read_plan="split")
    assert [plan(made), plan(made)] == [(5, 5), (5, 5)]
    made.report("decode-0", queues=queues(read_blocks=6))  # of which it had told nobody, beside the two promises
    assert plan(made) == (8, 2)


@pytest.mark.parametrize(
    ("computed_per_s", "tok", "read_blocks", "expected"),
    [
        (0.5, 0, 0, (10, 0)),  # read in 10 s, computed in 20 s
        (2.0, 0, 0, (0, 0)),
        (2.0, 15, 0, (10, 0)),  # the engine is busy for 15 s
        (2.0, 6, 0, (6, 0)),
        (0.5, 0, 11, (0, 0)),  # 21 s of reads
        (0.0, 0, 0, (0, 0)),  # computing has no limit
    ],
)
def test_a_hit_is_loaded_where_that_is_faster(computed_per_s, tok, read_blocks, expected):
    made = world(
        prefill={"new_tokens_per_s": computed_per_s * BLOCK, "tokens_per_s": 1.0},
        load_or_recompute=True,
        read_plan="prefill-only",
    )
    made.report("prefill-0", queues=queues(tok, read_blocks=read_blocks))
    assert plan(made) == expected


def test_without_it_everything_is_loaded():
    assert plan(world(prefill={"new_tokens_per_s": 1e9})) == (10, 0)


@pytest.mark.parametrize(
    ("affinity", "queued", "expected"),
    [(0.0, 8, "decode-0"), (1.0, 8, "decode-1"), (1.0, 48, "decode-0"), (2.0, 48, "decode-1")],
)
def test_a_session_returns_to_the_group_that_holds_its_kv(affinity, queued, expected):
    """Ten blocks of four tokens are held there, where `queued` tokens are under way."""
    made = World(make_spec(decode_affinity=affinity), nodes=("prefill-0", "decode-0", "decode-1"))
    keys = publish(made, tokens(HIT * BLOCK))
    made.report("decode-1", resident_added=keys, queues=queues(queued // 2))
    made.submit(prompt(tokens=tokens(HIT * BLOCK + 1)))
    for name in ("prefill-0", "decode-0", "decode-1"):
        made.poll(name)
    (assignment,) = made.collect("prefill-0").assignments
    assert assignment.decode_node == expected
    # What it holds it reads from memory.
    assert assignment.decode_side_blocks == (10 if expected == "decode-1" else 0)
