"""Whether a run that disagrees with the reference took the other side of routers' near-ties, and did nothing else.

Which experts a token goes to is not continuous: where two scores are closer than the noise of two correct runs, these
may choose differently, and then differ by more than ε at that token and at whatever attends to it. Such a run still
agrees, at the same ε, with a reference that makes those choices the other way; a run with wrong KV agrees with none.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.engine.oracle import Oracle, OracleRun
from dualpath_jax.replay.agreement import first_departure, largest_difference
from dualpath_jax.replay.play import TurnKey
from dualpath_scheduler.workload import Trace

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

    def choices(self, turn: int, ties: "Ties | None" = None) -> list[TokenChoice]:
        """What the reference says at the generated positions of a turn, with these ties falling the other way."""
        run = self._run(ties or {})
        return [run.choice(position) for position in self._spans[turn]]

    def resolution(self, turn: int, got: Sequence[TokenChoice], epsilon: float) -> "Ties | None":
        """The near-ties that must fall the other way for `got` to agree with the reference; None: none are found.

        Best first. What makes `got` depart from a variant is a near-tie before that position; so the variant that it
        followed longest is extended first, by its narrowest tie. A choice that is tipped moves what comes after it,
        so each variant has near-ties of its own.
        """
        if [choice.token for choice in got] != [self._tokens[position] for position in self._spans[turn]]:
            return None
        order = itertools.count()
        known: list[Ties] = [ties for ties, _ in self._variants.values()] or [{}]
        waiting = [(-math.inf, 0, 0.0, next(order), ties) for ties in known]
        met = {frozenset(ties) for ties in known}
        while waiting:
            *_, ties = heapq.heappop(waiting)
            if frozenset(ties) not in self._variants and len(self._variants) >= MOST_VARIANTS:
                continue
            departure = first_departure(got, self.choices(turn, ties), epsilon)
            if departure is None:
                return ties
            for decision, margin in self._run(ties).near_ties.items():
                more = {**ties, decision: margin}
                if decision.token < self._spans[turn][departure] and frozenset(more) not in met:
                    met.add(frozenset(more))
                    heapq.heappush(waiting, (-departure, len(more), margin, next(order), more))
        return None

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
            last = len(session.turns) - 1
            tokens = [*session.prompt_tokens(last).tolist(), *session.turns[last].generate_tokens.tolist()]
            turns = zip(session.prompt_lengths(), session.turns, strict=True)
            spans = [range(prompt, prompt + len(turn.generate)) for prompt, turn in turns]
            self._references[session_id] = SessionReference(self._oracle, tokens, spans)
        return self._references[session_id]

    def explain(
        self, run: str, choices: Mapping[TurnKey, Sequence[TokenChoice]], session_id: str
    ) -> Explanation | None:
        """How a run agrees with the reference in every turn that it has of a session; None: it does not.

        A turn's KV is one computation, whose near-ties fell somehow. Turns may differ in that: the tokens after the
        last full block are computed again by the next turn.
        """
        key = run, session_id
        if key not in self._explained:
            in_vain = sum(explanation is None for explanation in self._explained.values())
            turns = {turn: got for (session, turn), got in sorted(choices.items()) if session == session_id}
            self._explained[key] = self._searched(run, session_id, turns) if in_vain < MOST_IN_VAIN else None
        return self._explained[key]

    def _searched(self, run: str, session_id: str, turns: Mapping[int, Sequence[TokenChoice]]) -> Explanation | None:
        reference = self.reference(session_id)
        resolutions = []
        for turn, got in turns.items():
            ties = reference.resolution(turn, got, self._epsilon)
            if ties is None:
                return None
            resolutions.append(ties)
        # Up to ε several resolutions may fit a turn; how well the run agrees is said of the one that fits it best.
        largest = max(
            min(largest_difference(got, reference.choices(turn, ties)) for ties in resolutions)
            for turn, got in turns.items()
        )
        return Explanation(run, session_id, {d: m for ties in resolutions for d, m in ties.items()}, largest)
