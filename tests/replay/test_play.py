"""Sessions are played all at once, each turn after the one before it."""

import asyncio
import itertools
import time
from collections.abc import Sequence

import pytest

from dualpath_jax.replay.play import PlayedTurn, play
from dualpath_jax.rollout import Generation
from dualpath_scheduler.service import RequestFailed
from dualpath_scheduler.workload import SessionTrace, Trace, Turn
from tests.cluster.harness import small_spec
from tests.replay.samples import choice, generation, small_trace

STEP_S = 0.02


class StandIn:
    """A client and its sessions, which answer after a moment; every third turn of a session fails, where asked."""

    def __init__(self, *, failing: bool = False) -> None:
        self.failing = failing
        self.running = self.most_at_once = 0
        self.asked: list[tuple[list[int], int, list[int]]] = []

    def session(self) -> "StandInSession":
        return StandInSession(self)


class StandInSession:
    def __init__(self, client: StandIn) -> None:
        self.client = client
        self.history: tuple[int, ...] = ()
        self.turns = 0

    async def generate_async(self, tokens: list[int], max_tokens: int, *, forced_tokens: Sequence[int]) -> Generation:
        client = self.client
        client.asked.append((tokens, max_tokens, list(forced_tokens)))
        client.running += 1
        client.most_at_once = max(client.most_at_once, client.running)
        await asyncio.sleep(STEP_S)
        client.running -= 1
        self.turns += 1
        if client.failing and self.turns == 3:
            raise RequestFailed("node prefill-0 died")
        self.history += (*tokens, *forced_tokens)
        return generation([choice(token) for token in forced_tokens])


async def _play(
    client: StandIn, trace: Trace, delay_scale: float = 0.0, sessions_at_once: int | None = None
) -> tuple[list[PlayedTurn], list[PlayedTurn]]:
    told: list[PlayedTurn] = []
    played = await play(
        client,  # type: ignore[arg-type]
        trace,
        delay_scale=delay_scale,
        ended=told.append,
        sessions_at_once=sessions_at_once,
    )
    return played, told


async def test_all_sessions_at_once_each_turn_after_the_other(tmp_path):
    spec = small_spec(tmp_path)
    trace = small_trace(tmp_path, spec)
    client = StandIn()
    played, told = await _play(client, trace)
    assert client.most_at_once == 3
    assert [turn.key for turn in played] == [(f"s{s}", t) for s in range(3) for t in range(4)]
    assert sorted(turn.key for turn in told) == sorted(turn.key for turn in played)
    for turn in played:
        session = next(s for s in trace.sessions if s.session_id == turn.session_id)
        assert turn.generation.tokens == session.turns[turn.turn].generate_tokens.tolist()  # the trace's own
        assert turn.prompt_tokens == len(session.prompt_tokens(turn.turn))
    for session in trace.sessions:
        arrivals = [turn.arrival for turn in played if turn.session_id == session.session_id]
        assert all(later - earlier >= STEP_S * 0.9 for earlier, later in itertools.pairwise(arrivals))


@pytest.mark.parametrize("at_once", [1, 2])
async def test_so_many_sessions_at_a_time(tmp_path, at_once):
    client = StandIn()
    played, told = await _play(client, small_trace(tmp_path, small_spec(tmp_path)), sessions_at_once=at_once)
    assert client.most_at_once == at_once
    assert len(played) == 12
    if at_once == 1:
        assert [turn.key for turn in told] == [turn.key for turn in played]


async def test_a_turn_that_fails_is_the_last_of_its_session(tmp_path):
    trace = small_trace(tmp_path, small_spec(tmp_path))
    played, told = await _play(StandIn(failing=True), trace)
    assert [turn.key for turn in played] == [(f"s{s}", t) for s in range(3) for t in range(3)]
    assert {turn.error for turn in played if turn.turn == 2} == {"node prefill-0 died"}
    assert {turn.error for turn in played if turn.turn < 2} == {""}
    assert len(told) == 9


@pytest.mark.parametrize(("delay_scale", "least_s"), [(0.0, 0.0), (0.5, 0.25)])
async def test_arrivals_and_tool_delays_are_scaled(tmp_path, delay_scale, least_s):
    trace = small_trace(tmp_path, small_spec(tmp_path), sessions=1, turns=3)
    (session,) = trace.sessions
    turns = [Turn(turn.append, turn.generate, 0.1 * (i > 0)) for i, turn in enumerate(session.turns)]
    delayed = Trace("delayed", (SessionTrace("s0", tuple(turns), arrival_s=0.3),))
    start = time.monotonic()
    await _play(StandIn(), delayed, delay_scale)
    took_s = time.monotonic() - start
    assert took_s >= least_s + 3 * STEP_S * 0.9
    if not delay_scale:
        assert took_s < 0.5
