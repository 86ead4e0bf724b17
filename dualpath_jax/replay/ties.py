"""Whether a run that disagrees with the reference took the other side of routers' near-ties, and did nothing else.

Which experts a token goes to is not continuous: where two scores are closer than the noise of two correct runs, these
may choose differently, and then differ by more than ε at that token and at whatever attends to it. Such a run still
agrees, at the same ε, with a reference that makes those choices the other way; a run with wrong KV agrees with none.

All turns of a session must agree with the same one, since KV is computed once and then loaded. Only the choices for
tokens that were computed more than once (after the last full block, or because a block was not there yet) may have
fallen differently from turn to turn.
"""

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.engine.oracle import Oracle, OracleRun
from dualpath_jax.replay.agreement import first_departure, largest_difference
from dualpath_jax.replay.play import PlayedTurn
from dualpath_scheduler.workload import SessionTrace, Trace

if TYPE_CHECKING:
    from dualpath_jax.models import Decision

    Ties = Mapping[Decision, float]
    """Choices of routers that are made the other way, each with its margin in the variant where it was found."""

MOST_VARIANTS = 16
"""Passes over one session, so that the search ends soon: two near-ties in a session make four variants."""

MOST_IN_VAIN = 3
"""Sessions without an explanation after which no more are searched: they fail the comparison anyway."""


@dataclass(frozen=True)
class Explanation:
    """The near-ties of a session at whose other side a run agrees, and how well it does; without ties: as it is."""

    run: str
    session_id: str
    ties: "Ties"
    largest_difference: float

    def line(self) -> str:
        """One line for a person."""
        places = [f"token {d.token}, layer {d.layer}, {d.place}, margin {m:.1e}" for d, m in sorted(self.ties.items())]
        return (
            f"session {self.session_id}: {self.run} took the other side of a router's near-tie ({'; '.join(places)}), "
            f"and is within {self.largest_difference:.1e} of a reference that does so too"
        )


@final
class SessionReference:
    """The no-cache reference over one session, for each resolution of near-ties that is asked for.

    The generated positions of all turns are positions of one sequence, since generations are forced: one pass serves
    all turns. `spans` are each turn's generated positions in `tokens`.
    """

    def __init__(self, oracle: Oracle, tokens: Sequence[int], spans: Sequence[range]) -> None:
        self._oracle, self._tokens, self._spans = oracle, tokens, spans
        self._variants: dict[frozenset[Decision], tuple[Ties, OracleRun]] = {}

    @property
    def variants(self) -> list["Ties"]:
        """What has been asked for, in that order."""
        return [ties for ties, _ in self._variants.values()]

    def choices(self, turn: int, ties: "Ties | None" = None) -> list[TokenChoice]:
        """What the reference says at the generated positions of a turn, with these ties falling the other way."""
        run = self._run(ties or {})
        return [run.choice(position) for position in self._spans[turn]]

    def search(self, turn: int, got: Sequence[TokenChoice], epsilon: float) -> bool:
        """Ask for variants until `got` agrees with one; whether it does.

        Best first. What makes `got` depart from a variant is a near-tie before that position; so the variant that it
        followed longest is extended first, by its narrowest tie. A choice that is tipped moves what comes after it,
        so each variant has near-ties of its own.
        """
        if [choice.token for choice in got] != [self._tokens[position] for position in self._spans[turn]]:
            return False
        order = itertools.count()
        known: list[Ties] = self.variants or [{}]
        waiting = [(-math.inf, 0, 0.0, next(order), ties) for ties in known]
        met = {frozenset(ties) for ties in known}
        while waiting:
            *_, ties = heapq.heappop(waiting)
            if frozenset(ties) not in self._variants and len(self._variants) >= MOST_VARIANTS:
                continue
            departure = first_departure(got, self.choices(turn, ties), epsilon)
            if departure is None:
                return True
            for decision, margin in self._run(ties).near_ties.items():
                more = {**ties, decision: margin}
                if decision.token < self._spans[turn][departure] and frozenset(more) not in met:
                    met.add(frozenset(more))
                    heapq.heappush(waiting, (-departure, len(more), margin, next(order), more))
        return False

    def fit(
        self, turn: int, got: Sequence[TokenChoice], variants: Iterable["Ties"], epsilon: float
    ) -> "tuple[float, Ties] | None":
        """Of the variants that `got` agrees with, one with the fewest ties, and how far from it `got` is."""
        fits = []
        for ties in variants:
            expected = self.choices(turn, ties)
            if first_departure(got, expected, epsilon) is None:
                fits.append((largest_difference(got, expected), ties))
        return min(fits, key=lambda fit: (len(fit[1]), fit[0]), default=None)

    def _run(self, ties: "Ties") -> OracleRun:
        key = frozenset(ties)
        if key not in self._variants:
            positions = [position for span in self._spans for position in span]
            self._variants[key] = ties, self._oracle.run(self._tokens, positions, key)
        return self._variants[key][1]


@final
class TieSearch:
    """Explains what runs of one trace said by near-ties, each session of each run once."""

    def __init__(self, oracle: Oracle, epsilon: float, trace: Trace) -> None:
        self._oracle, self._epsilon = oracle, epsilon
        self._sessions = {session.session_id: session for session in trace.sessions}
        self._references: dict[str, SessionReference] = {}
        self._explained: dict[tuple[str, str], Explanation | None] = {}

    def reference(self, session_id: str) -> SessionReference:
        """The no-cache reference over a session."""
        if session_id not in self._references:
            session = self._sessions[session_id]
            turns = zip(session.prompt_lengths(), session.turns, strict=True)
            spans = [range(prompt, prompt + len(turn.generate)) for prompt, turn in turns]
            self._references[session_id] = SessionReference(self._oracle, all_tokens(session).tolist(), spans)
        return self._references[session_id]

    def explain(self, run: str, turns: Sequence[PlayedTurn], session_id: str) -> Explanation | None:
        """How a run agrees with the reference in every turn that it has of a session; None: it does not."""
        key = run, session_id
        if key not in self._explained:
            in_vain = sum(explanation is None for explanation in self._explained.values())
            played = sorted((turn for turn in turns if turn.session_id == session_id), key=lambda turn: turn.turn)
            self._explained[key] = self._searched(run, session_id, played) if in_vain < MOST_IN_VAIN else None
        return self._explained[key]

    def _searched(self, run: str, session_id: str, played: Sequence[PlayedTurn]) -> Explanation | None:
        reference = self.reference(session_id)
        said = {turn.turn: turn.generation.choices for turn in played if turn.generation is not None}
        if not all(reference.search(turn, got, self._epsilon) for turn, got in said.items()):
            return None
        once = self._computed_once(session_id, played)
        alike: dict[frozenset[Decision], list[Ties]] = {}
        for ties in reference.variants:
            alike.setdefault(frozenset(d for d in ties if d.token in once), []).append(ties)
        for variants in alike.values():
            fits = [reference.fit(turn, got, variants, self._epsilon) for turn, got in said.items()]
            found = [fit for fit in fits if fit is not None]
            if len(found) == len(fits):
                tipped = {decision: margin for _, ties in found for decision, margin in ties.items()}
                return Explanation(run, session_id, tipped, max(difference for difference, _ in found))
        return None

    def _computed_once(self, session_id: str, played: Sequence[PlayedTurn]) -> Collection[int]:
        """The tokens of a session whose KV was computed by one turn alone and loaded by all turns after it.

        Not what another session begins with as well: its turns compute and store that too.
        """
        mine = all_tokens(self._sessions[session_id])
        times = np.zeros(len(mine), int)
        for turn in played:
            if turn.generation is not None:
                loaded = turn.generation.hit_tokens if turn.generation.attempts == 1 else 0
                times[loaded : turn.prompt_tokens + len(turn.generation.choices)] += 1
        others = (all_tokens(other) for key, other in self._sessions.items() if key != session_id)
        shared = max((common_prefix(mine, other) for other in others), default=0)
        return {int(token) for token in np.flatnonzero(times == 1) if token >= shared}


def all_tokens(session: SessionTrace) -> np.ndarray:
    """Everything that a session's last turn ends with, int32."""
    last = len(session.turns) - 1
    return np.concatenate([session.prompt_tokens(last), session.turns[last].generate_tokens])


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two sequences begin with alike."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if differ.size else shorter
