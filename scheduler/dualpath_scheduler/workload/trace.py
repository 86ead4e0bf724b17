"""Traces: sessions of turns, whose tokens are made from block ids when they are asked for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

APPENDED: Final = 1
GENERATED: Final = 2

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
_STREAM_STEP = np.uint64(0xD1B54A32D192ED03)


class TraceError(ValueError):
    """A trace, or what was asked of one, that is wrong, in one line."""


def check_at_least_one(**counts: int | None) -> None:
    """Raises TraceError for a count below 1; absent ones are fine."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise TraceError(f"{name} = {count}: expected at least 1")


def check_positive(**numbers: float | None) -> None:
    """Raises TraceError for a number that is not positive and finite; absent ones are fine."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise TraceError(f"{name} = {number}: expected a finite number above 0")


@dataclass(frozen=True)
class TokenSpan:
    """`length` token ids made from `ids`, `tokens_per_id` from each, the last one perhaps cut.

    A token is a function of its id, its position within that id, the stream (appended or generated) and the vocabulary
    size, so that equal ids give equal tokens in every process and on every machine.
    """

    ids: tuple[int, ...]
    length: int
    tokens_per_id: int
    vocab_size: int
    stream: int = APPENDED

    def __len__(self) -> int:
        return self.length

    def tokens(self) -> np.ndarray:
        """The token ids, int32 `[length]`, each in `[0, vocab_size)`; a new array at each call."""
        positions = np.arange(self.length, dtype=np.uint64)
        ids = np.asarray(self.ids, dtype=np.uint64)[positions // np.uint64(self.tokens_per_id)]
        seeds = _mixed(ids * _STEP + np.full(1, self.stream, np.uint64) * _STREAM_STEP)
        drawn = _mixed(seeds + positions % np.uint64(self.tokens_per_id) * _STEP)
        return (drawn % np.uint64(self.vocab_size)).astype(np.int32)


def _mixed(words: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit words in which each input bit reaches every output bit."""
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return words ^ (words >> np.uint64(32))


@dataclass(frozen=True)
class Turn:
    """What a session appends to its context, and what the model then says (forced in a replay)."""

    append: TokenSpan
    generate: TokenSpan
    delay_s: float = 0.0
    """The tool's time between the end of the turn before and this one."""

    @property
    def append_tokens(self) -> np.ndarray:
        """int32 `[len(append)]`."""
        return self.append.tokens()

    @property
    def generate_tokens(self) -> np.ndarray:
        """int32 `[len(generate)]`."""
        return self.generate.tokens()


@dataclass(frozen=True)
class SessionTrace:
    """Turns that follow each other; a turn's prompt is all earlier appends and generations and its own append."""

    session_id: str
    turns: tuple[Turn, ...]
    arrival_s: float = 0.0
    """Seconds after the trace's first session."""

    def prompt_lengths(self) -> Iterator[int]:
        """Tokens of each turn's prompt."""
        context = 0
        for turn in self.turns:
            context += len(turn.append)
            yield context
            context += len(turn.generate)

    def prompt_tokens(self, turn: int) -> np.ndarray:
        """The whole prompt of turn number `turn` (from 0), int32."""
        earlier = [part for past in self.turns[:turn] for part in (past.append_tokens, past.generate_tokens)]
        return np.concatenate([*earlier, self.turns[turn].append_tokens])


@dataclass(frozen=True)
class Trace:
    """Sessions to replay, and what had to be left out of them to fit the longest context."""

    name: str
    sessions: tuple[SessionTrace, ...]
    cut_turns: int = 0
    """Turns that would have exceeded `max_context_tokens`, with those that followed them."""
    dropped_sessions: int = 0
    """Sessions of which no turn was left; their turns are counted in `cut_turns`."""

    def summary(self) -> dict[str, object]:
        """What a report says of a trace. Prompt tokens count a turn's whole prompt, contexts its generation as well."""
        turns = [turn for session in self.sessions for turn in session.turns]
        prompts = [length for session in self.sessions for length in session.prompt_lengths()]
        contexts = [prompt + len(turn.generate) for prompt, turn in zip(prompts, turns, strict=True)]
        return {
            "name": self.name,
            "sessions": len(self.sessions),
            "turns": len(turns),
            "appended_tokens": sum(len(turn.append) for turn in turns),
            "generated_tokens": sum(len(turn.generate) for turn in turns),
            "prompt_tokens": sum(prompts),
            "longest_context_tokens": max(contexts, default=0),
            "cut_turns": self.cut_turns,
            "dropped_sessions": self.dropped_sessions,
        }
