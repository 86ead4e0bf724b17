"""Playing a trace's sessions against a cluster, all at once or so many at a time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from dualpath_jax.rollout import Client, Generation, Session
from dualpath_scheduler.service import InvalidRequest, RequestFailed, SchedulerUnavailable
from dualpath_scheduler.workload import SessionTrace, Trace, Turn

TurnKey = tuple[str, int]
"""Session id and the number of the turn in it, from 0."""


@dataclass(frozen=True)
class PlayedTurn:
    """One turn as it went: its generation, or the error that ended its session."""

    session_id: str
    turn: int
    prompt_tokens: int
    arrival: float
    generation: Generation | None
    error: str = ""

    @property
    def key(self) -> TurnKey:
        return (self.session_id, self.turn)


async def play(
    client: Client,
    trace: Trace,
    *,
    delay_scale: float,
    ended: Callable[[PlayedTurn], object],
    sessions_at_once: int | None = None,
) -> list[PlayedTurn]:
    """Play every session; a turn waits for the one before it and for its tool delay times `delay_scale`.

    With `sessions_at_once`, a session that would be one more begins when one of those before it has ended.

    The trace's own tokens are forced as generations, so that every run sees the same contexts. `ended` is told of
    each turn. A turn that fails is the last of its session. Returns the turns in order of sessions.
    """
    places = asyncio.Semaphore(sessions_at_once or max(1, len(trace.sessions)))

    async def when_there_is_a_place(session: SessionTrace) -> list[PlayedTurn]:
        await asyncio.sleep(session.arrival_s * delay_scale)
        async with places:
            return await _play_session(client.session(), session, delay_scale, ended)

    played = await asyncio.gather(*(when_there_is_a_place(session) for session in trace.sessions))
    return [turn for turns in played for turn in turns]


async def _play_session(
    session: Session, trace: SessionTrace, delay_scale: float, ended: Callable[[PlayedTurn], object]
) -> list[PlayedTurn]:
    played = []
    for number, turn in enumerate(trace.turns):
        await asyncio.sleep(turn.delay_s * delay_scale)
        result = await _play_turn(session, trace.session_id, number, turn)
        played.append(result)
        ended(result)
        if result.error:
            break
    return played


async def _play_turn(session: Session, session_id: str, number: int, turn: Turn) -> PlayedTurn:
    arrival = time.time()
    prompt_tokens = len(session.history) + len(turn.append)
    forced = turn.generate_tokens.tolist()
    try:
        generation = await session.generate_async(turn.append_tokens.tolist(), len(forced), forced_tokens=forced)
    except (RequestFailed, InvalidRequest, SchedulerUnavailable) as error:
        return PlayedTurn(session_id, number, prompt_tokens, arrival, None, str(error) or type(error).__name__)
    return PlayedTurn(session_id, number, prompt_tokens, arrival, generation)
