"""A run that took the other side of a router's near-tie is told apart, exactly, from one whose KV is wrong."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.engine.oracle import FlaxOracle, Oracle, OracleRun
from dualpath_jax.models import Decision, Decoder, flatten, named_parameters, reference_run, routing_noise
from dualpath_jax.models.parameters import with_leaves
from dualpath_jax.models.router import PLACES
from dualpath_jax.replay import run as replay_run
from dualpath_jax.replay.play import PlayedTurn, TurnKey
from dualpath_jax.replay.run import check
from dualpath_jax.replay.ties import MOST_IN_VAIN, MOST_VARIANTS, SessionReference, TieSearch
from dualpath_scheduler.workload import SessionTrace, TokenSpan, Trace, Turn
from tests.cluster.flax_cluster import VOCABULARY, flax_spec
from tests.replay.samples import START, generation, mode_run

EPSILON = 1e-4
TURNS, APPEND, GENERATE = 3, 40, 5
TOKENS = TURNS * (APPEND + GENERATE)
Choices = dict[TurnKey, list[TokenChoice]]


def trace_of(sessions: int = 1) -> Trace:
    def turn(session: int, number: int) -> Turn:
        first = 100 * session + 2 * number
        return Turn(
            TokenSpan((first,), APPEND, APPEND, VOCABULARY), TokenSpan((first + 1,), GENERATE, GENERATE, VOCABULARY)
        )

    return Trace("t", tuple(SessionTrace(f"s{s}", tuple(turn(s, i) for i in range(TURNS))) for s in range(sessions)))


def tokens_of(session: SessionTrace) -> np.ndarray:
    return np.concatenate([session.prompt_tokens(TURNS - 1), session.turns[-1].generate_tokens])


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> ClusterSpec:
    """Two groups, of which one is kept; two of its four experts are. What the last router chooses reaches no KV."""
    return flax_spec(tmp_path_factory.mktemp("kv"), model__num_hidden_layers=4)


@pytest.fixture(scope="module")
def plain(spec) -> Decoder:
    return Decoder.initialize(spec.model, seed=0)


SESSION = trace_of().sessions[0]
SEQUENCE = tokens_of(SESSION)


def margin_of(model: Decoder, decision: Decision, tipped: Collection[Decision] = ()) -> float:
    margins = reference_run(model, SEQUENCE, tipped).margins
    return float(margins[decision.token, decision.layer, PLACES.index(decision.place)])


def with_bias(model: Decoder, layer: int, expert: int, more: float) -> Decoder:
    """The model with one number of one router's bias changed."""
    at = [path for path, _ in named_parameters(model)].index("moe.ffn.router_bias")
    leaves = list(flatten(model)[1])
    leaves[at] = leaves[at].at[layer - model.spec.first_k_dense_replace, expert].add(jnp.float32(more))
    return with_leaves(model, leaves)


def narrowest(model: Decoder, layer: int, place: str, tokens: range) -> Decision:
    margins = reference_run(model, SEQUENCE).margins[tokens.start : tokens.stop, layer, PLACES.index(place)]
    return Decision(tokens.start + int(np.argmin(margins)), layer, place)


def tied(model: Decoder, decision: Decision, tipped: Collection[Decision] = ()) -> Decoder:
    """The model with one bias moved such that this choice is a tie, to the last bit or two, once `tipped` are."""
    margin = margin_of(model, decision, tipped)
    for expert in range(model.spec.n_routed_experts):
        candidate = with_bias(model, decision.layer, expert, margin)
        if margin_of(candidate, decision, tipped) <= 1.2e-7:
            return candidate
    raise AssertionError(f"no bias makes a tie of {decision}")


def reference_of(model: Decoder) -> SessionReference:
    return TieSearch(FlaxOracle(model), EPSILON, trace_of()).reference("s0")


def said(model: Decoder, *tipped: Decision) -> Choices:
    """What a run says that made these choices the other way."""
    reference = reference_of(model)
    return {("s0", turn): reference.choices(turn, dict.fromkeys(tipped, 0.0)) for turn in range(TURNS)}


def corrupted(choices: Choices, turn: int, positions: Sequence[int], by: float = 2.7e-3) -> Choices:
    changed = list(choices["s0", turn])
    for position in positions:
        changed[position] = replace(changed[position], logprob=changed[position].logprob + by)
    return {**choices, ("s0", turn): changed}


def played(choices: Choices, loaded: Mapping[int, int] | None = None, attempts: int = 1) -> list[PlayedTurn]:
    """Turns that said this; `loaded` are a turn's tokens that it did not compute, else all of the turn before it."""
    turns = []
    for (session, turn), chosen in sorted(choices.items()):
        hit = (loaded or {}).get(turn, turn * (APPEND + GENERATE))
        result = generation(chosen, hit_tokens=hit, attempts=attempts)
        turns.append(PlayedTurn(session, turn, turn * (APPEND + GENERATE) + APPEND, START, result))
    return turns


def explained(model: Decoder, choices: Choices, **how: object) -> Mapping[Decision, float] | None:
    """The ties by which a run is explained; None where it is not."""
    found = TieSearch(FlaxOracle(model), EPSILON, trace_of()).explain("dualpath", played(choices, **how), "s0")
    if found is None:
        return None
    assert found.largest_difference <= EPSILON
    return found.ties


@pytest.mark.parametrize("place", PLACES)
def test_the_other_side_of_a_tie_is_explained_by_that_tie(plain, place):
    tie = narrowest(plain, 1, place, range(10, 30))
    model = tied(plain, tie)
    run, straight = said(model, tie), said(model)
    assert max(abs(a.logprob - b.logprob) for key in run for a, b in zip(run[key], straight[key], strict=True)) > 1e-3
    ties = explained(model, run)
    assert list(ties) == [tie]
    assert ties[tie] < 1.2e-7
    assert explained(model, straight) == {}


def test_a_choice_that_was_no_near_tie_explains_nothing(plain, spec):
    tie = narrowest(plain, 1, "experts", range(10, 30))
    assert margin_of(plain, tie) > 10 * routing_noise(spec.model)
    assert explained(plain, said(plain, tie)) is None


@pytest.mark.parametrize("with_tip", [False, True])
@pytest.mark.parametrize(("turn", "positions"), [(0, [0]), (2, [4]), (1, [1, 2, 3])])
def test_corruption_is_not_explained_with_or_without_a_tie(plain, with_tip, turn, positions):
    tie = narrowest(plain, 1, "experts", range(10, 30))
    model = tied(plain, tie)
    run = said(model, tie) if with_tip else said(model)
    assert explained(model, corrupted(run, turn, positions)) is None


def test_kv_of_another_token_is_not_explained(plain):
    """The run saw one token of its context as another one."""
    tie = narrowest(plain, 1, "experts", range(10, 30))
    model = tied(plain, tie)
    wrong = SEQUENCE.copy()
    wrong[20] = (wrong[20] + 1) % VOCABULARY
    spans = [range(turn * (APPEND + GENERATE) + APPEND, (turn + 1) * (APPEND + GENERATE)) for turn in range(TURNS)]
    reference = SessionReference(FlaxOracle(model), wrong, spans)
    assert explained(model, {("s0", turn): reference.choices(turn) for turn in range(TURNS)}) is None


@pytest.fixture(scope="module")
def with_a_tie(plain) -> tuple[Decoder, Decision]:
    """In the prompt of turn 1."""
    tie = narrowest(plain, 1, "experts", range(APPEND + GENERATE, 2 * APPEND))
    return tied(plain, tie), tie


def test_only_turns_that_computed_a_token_again_may_choose_anew(with_a_tie):
    model, tie = with_a_tie
    anew = said(model, tie) | {("s0", 2): said(model)["s0", 2]}
    assert explained(model, anew) is None
    assert list(explained(model, anew, loaded={2: tie.token // 8 * 8})) == [tie]
    assert explained(model, anew, loaded={2: tie.token + 1}) is None
    # An attempt that failed may have loaded less than the one that succeeded.
    assert list(explained(model, anew, attempts=2)) == [tie]
    assert list(explained(model, said(model, tie))) == [tie]


def test_tokens_that_another_session_computes_too_may_fall_either_way(with_a_tie):
    model, tie = with_a_tie
    anew = said(model, tie) | {("s0", 2): said(model)["s0", 2]}
    for other, expected in ((replace(SESSION, session_id="s1"), True), (replace(trace_of(2).sessions[1]), False)):
        trace = Trace("t", (SESSION, other))
        found = TieSearch(FlaxOracle(model), EPSILON, trace).explain("dualpath", played(anew), "s0")
        assert (found is not None) == expected


def test_a_second_tie_that_the_first_one_makes_is_found(plain, spec):
    first = narrowest(plain, 1, "experts", range(5, 20))
    model = tied(plain, first)
    # At the same token in the next layer: moved by the first by far more than any noise.
    second = Decision(first.token, 2, "experts")
    model = tied(model, second, [first])
    assert margin_of(model, second) > 10 * routing_noise(spec.model)
    assert set(explained(model, said(model, first, second))) == {first, second}
    assert set(explained(model, said(model, first))) == {first}
    # Without the first, the second is no near-tie.
    assert explained(model, said(model, second)) is None


def test_two_ties_in_different_turns_are_found(plain):
    first = narrowest(plain, 1, "groups", range(5, 30))
    model = tied(plain, first)
    second = narrowest(model, 2, "experts", range(APPEND + GENERATE, 2 * APPEND))
    model = tied(model, second)
    assert set(explained(model, said(model, first, second))) == {first, second}
    assert set(explained(model, said(model, second))) == {second}


class Scripted(Oracle):
    """Has near-ties at these tokens, and says the same whichever are tipped; counts its passes."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.ties = {Decision(token, 1, "experts"): 1e-8 * (1 + token) for token in tokens}
        self.passes: list[frozenset[Decision]] = []

    def run(self, tokens: Sequence[int], positions: Collection[int], tipped: Collection[Decision] = ()) -> OracleRun:
        self.passes.append(frozenset(tipped))
        return OracleRun(lambda at: TokenChoice(int(tokens[at]), -1.0, (1, 2), (-1.0, -2.0)), self.ties)


def off_by(logprob: float, sessions: int = 1, position: int = 0) -> Choices:
    oracle, trace = Scripted([]), trace_of(sessions)
    references = TieSearch(oracle, EPSILON, trace)
    choices = {
        (session.session_id, turn): references.reference(session.session_id).choices(turn)
        for session in trace.sessions
        for turn in range(TURNS)
    }
    for session in trace.sessions:
        wrong = choices[session.session_id, 1][position]
        choices[session.session_id, 1][position] = replace(wrong, logprob=wrong.logprob + logprob)
    return choices


def test_the_search_is_bounded_and_tries_single_ties_first():
    oracle = Scripted(range(20))
    assert TieSearch(oracle, EPSILON, trace_of()).explain("dualpath", played(off_by(1e-3)), "s0") is None
    assert len(oracle.passes) == len(set(oracle.passes)) == MOST_VARIANTS
    assert [len(tipped) for tipped in oracle.passes] == [0] + [1] * (MOST_VARIANTS - 1)
    few = Scripted([3, 5, 7])
    assert TieSearch(few, EPSILON, trace_of()).explain("dualpath", played(off_by(1e-3)), "s0") is None
    assert [len(tipped) for tipped in few.passes] == [0, 1, 1, 1, 2, 2, 2, 3]
    assert few.passes[1] == {Decision(3, 1, "experts")}  # the narrowest


def test_ties_after_the_departure_are_not_tried():
    # The second position of turn 1 is APPEND + GENERATE + APPEND + 1; its logits come of the token before it.
    at = APPEND + GENERATE + APPEND + 1
    oracle = Scripted([at - 1, at, at + 1])
    assert TieSearch(oracle, EPSILON, trace_of()).explain("dualpath", played(off_by(1e-3, position=1)), "s0") is None
    assert oracle.passes == [frozenset(), {Decision(at - 1, 1, "experts")}]


def test_the_search_gives_up_after_a_few_sessions_in_vain():
    oracle, sessions = Scripted([]), MOST_IN_VAIN + 4
    search, turns = TieSearch(oracle, EPSILON, trace_of(sessions)), played(off_by(1e-3, sessions))
    found = [search.explain("dualpath", turns, f"s{i}") for i in range(sessions)]
    assert found == [None] * sessions
    assert len(oracle.passes) == MOST_IN_VAIN


def test_other_tokens_or_fewer_are_never_explained():
    right = off_by(0.0)
    wrong = {**right, ("s0", 1): [replace(right["s0", 1][0], token=95), *right["s0", 1][1:]]}
    short = {**right, ("s0", 1): right["s0", 1][:-1]}
    for choices in (wrong, short):
        assert TieSearch(Scripted([1]), EPSILON, trace_of()).explain("dualpath", played(choices), "s0") is None


def test_check_accepts_and_names_the_tie(monkeypatch, spec, with_a_tie):
    model, tie = with_a_tie
    monkeypatch.setattr(replay_run, "build_oracle", lambda _: (FlaxOracle(model), EPSILON))
    runs = [mode_run("basic", said(model)), mode_run("dualpath", said(model, tie)), mode_run("oracle", said(model))]
    comparisons, _ = check(spec, trace_of(), runs, sample=3)
    assert [found.problems for found in comparisons] == [()] * 5
    named = {(found.run, found.reference): found.near_ties for found in comparisons if found.near_ties}
    assert set(named) == {("dualpath", "basic"), ("dualpath", "the no-cache reference")}
    for (line,) in named.values():
        assert line.startswith(
            "session s0: dualpath took the other side of a router's near-tie "
            f"(token {tie.token}, layer 1, experts, margin "
        )
    assert "; besides, sessions explained by near-ties of routers: 1" in comparisons[0].line(EPSILON)


@pytest.mark.parametrize("which", ["basic", "dualpath"])
def test_check_refuses_a_tie_with_corruption_in_either_run(monkeypatch, spec, with_a_tie, which):
    model, tie = with_a_tie
    monkeypatch.setattr(replay_run, "build_oracle", lambda _: (FlaxOracle(model), EPSILON))
    choices = {"basic": said(model), "dualpath": said(model, tie)}
    choices[which] = corrupted(choices[which], 1, [2])
    runs = [mode_run(mode, chosen) for mode, chosen in choices.items()]
    found = check(spec, trace_of(), runs, sample=0)[0][0]
    assert found.near_ties == ()
    assert any("session s0 turn 1, token 2: log-probability" in problem for problem in found.problems)


def test_two_runs_beyond_epsilon_of_each_other_need_a_tie_not_the_reference_between_them(monkeypatch, spec, with_a_tie):
    model, _ = with_a_tie
    monkeypatch.setattr(replay_run, "build_oracle", lambda _: (FlaxOracle(model), EPSILON))
    runs = [
        mode_run("basic", corrupted(said(model), 1, [2], by=-0.8e-4)),
        mode_run("dualpath", corrupted(said(model), 1, [2], by=0.8e-4)),
    ]
    between, *others = check(spec, trace_of(), runs, sample=3)[0]
    assert len(between.problems) == 1
    assert [found.problems for found in others] == [(), ()]
