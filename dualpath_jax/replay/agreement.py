"""Whether runs agree: the same contexts must give the same log-probabilities and greedy choices, up to ε.

For every generated position, the log-probability of the chosen token differs by at most ε, and the greedy choice
differs only where the margin between the two tokens is below 2ε (two runs that compute the same thing with other batch
shapes differ in the last bits, and a near-tie may then fall either way).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.replay.play import TurnKey


@dataclass(frozen=True)
class Agreement:
    """The comparison of one run with another: what was compared, how far apart, and what is beyond ε.

    `sessions` are those that problems are in. `near_ties` has a line for each session that is left out of the rest
    because it agrees once near-ties of routers fall the other way (`replay.ties`).
    """

    run: str
    reference: str
    requests: int
    positions: int
    largest_difference: float
    problems: tuple[str, ...]
    sessions: tuple[str, ...] = ()
    near_ties: tuple[str, ...] = ()

    def line(self, epsilon: float) -> str:
        """One line for a person."""
        verdict = "agrees with" if not self.problems else f"DISAGREES at {len(self.problems)} positions with"
        compared = f"{self.requests} requests, {self.positions} tokens"
        distance = f"log-probabilities within {self.largest_difference:.1e} (ε = {epsilon:.0e})"
        tied = f"; besides, sessions explained by near-ties of routers: {len(self.near_ties)}" if self.near_ties else ""
        return f"{self.run} {verdict} {self.reference}: {compared}, {distance}{tied}"


def compare(
    run: str,
    choices: Mapping[TurnKey, Sequence[TokenChoice]],
    reference: str,
    expected: Mapping[TurnKey, Sequence[TokenChoice]],
    *,
    epsilon: float,
) -> Agreement:
    """Compare the turns that `expected` has. One that `choices` lacks, or has with another length, is a problem."""
    problems, sessions, largest, positions = [], [], 0.0, 0
    for key, wanted in expected.items():
        got = choices.get(key, ())
        where = f"session {key[0]} turn {key[1]}"
        if len(got) != len(wanted):
            problems.append(f"{where}: {run} has {len(got)} tokens, {reference} {len(wanted)}")
            sessions.append(key[0])
            continue
        positions += len(wanted)
        largest = max(largest, largest_difference(got, wanted))
        for position, (mine, other) in enumerate(zip(got, wanted, strict=True)):
            problem = _difference(mine, other, epsilon)
            if problem:
                problems.append(f"{where}, token {position}: {problem}")
                sessions.append(key[0])
    return Agreement(run, reference, len(expected), positions, largest, tuple(problems), tuple(dict.fromkeys(sessions)))


def largest_difference(got: Sequence[TokenChoice], wanted: Sequence[TokenChoice]) -> float:
    """Of log-probabilities, over positions of two sequences of one length."""
    return max((abs(mine.logprob - other.logprob) for mine, other in zip(got, wanted, strict=True)), default=0.0)


def first_departure(got: Sequence[TokenChoice], wanted: Sequence[TokenChoice], epsilon: float) -> int | None:
    """The first position where `got` differs from the reference by more than agreement allows; None: none does."""
    pairs = zip(got, wanted, strict=True)
    return next((at for at, (mine, other) in enumerate(pairs) if _difference(mine, other, epsilon)), None)


def _difference(mine: TokenChoice, other: TokenChoice, epsilon: float) -> str:
    """What is wrong at one position; empty: nothing. `other` is the reference."""
    if mine.token != other.token:
        return f"token {mine.token}, expected {other.token}"
    if not abs(mine.logprob - other.logprob) <= epsilon:
        return f"log-probability {mine.logprob:.7f}, expected {other.logprob:.7f}"
    if mine.top_tokens[0] != other.top_tokens[0]:
        # The two most likely tokens are known; a third one is further away than the second.
        margin = other.top_logprobs[0] - other.top_logprobs[1]
        if mine.top_tokens[0] != other.top_tokens[1] or margin >= 2 * epsilon:
            return f"greedy choice {mine.top_tokens[0]}, expected {other.top_tokens[0]} by {margin:.1e}"
    return ""


def spread_sample(keys: Sequence[TurnKey], count: int) -> list[TurnKey]:
    """`count` turns spread evenly over the turn numbers, early and late, and over the sessions."""
    rank = {session: i for i, session in enumerate(sorted({session for session, _ in keys}))}
    # Each turn begins with another session, or equal steps would fall in step with the number of sessions.
    ordered = sorted(keys, key=lambda key: (key[1], (rank[key[0]] + key[1]) % len(rank)))
    if count >= len(ordered):
        return ordered
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
