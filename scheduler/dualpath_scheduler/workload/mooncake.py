"""The Mooncake trace format, JSON lines: requests with `hash_ids`, and sessions of per-turn deltas.

    {"timestamp": 40, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}
    {"session_id": "a", "timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}
    {"session_id": "a", "delay": 1200, "input_length": 90, "output_length": 12, "hash_ids": [8]}

Times are milliseconds. An id stands for 512 tokens, the last one of a line perhaps for fewer; equal ids are equal
tokens. A request is a session of one turn. In a session's lines `input_length` and `hash_ids` are what the turn adds.
The format has no ids for generations: theirs follow from the last id of the turn's input.

A trace whose lengths were scaled has fewer tokens an id; the key `tokens_per_hash_id`, which is this project's own,
says how many, so that what was saved loads as it was.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dualpath_scheduler.files import write_atomically
from dualpath_scheduler.workload.trace import GENERATED, SessionTrace, TokenSpan, Trace, TraceError, Turn

MOONCAKE_TOKENS_PER_ID: Final = 512

_MAX_ID = 2**63 - 1
_PER_ID = "tokens_per_hash_id"
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class _Line:
    """One line, checked; `where` is its `file:line`."""

    where: str
    session_id: str | None
    timestamp_ms: float | None
    delay_ms: float | None
    input_length: int
    output_length: int
    ids: tuple[int, ...]
    tokens_per_id: int


def turn_from_ids(
    ids: tuple[int, ...], append_length: int, generate_length: int, tokens_per_id: int, vocab_size: int
) -> Turn:
    """A turn whose generation is made from the last id of what it appends."""
    return Turn(
        TokenSpan(ids, append_length, tokens_per_id, vocab_size),
        TokenSpan(ids[-1:], generate_length, generate_length, vocab_size, GENERATED),
    )


def read_mooncake(path: Path, *, vocab_size: int, scale: float) -> list[SessionTrace]:
    """The sessions of a file, plain or gzip (`.gz`), in the order in which they begin in it.

    `scale` multiplies the tokens of an id and of a generation, each rounded and at least 1; arrivals and delays stay.

    Raises:
        TraceError: with `file:line`, for anything that is not as the format has it.
    """
    sessions: dict[str, list[_Line]] = {}
    kind: bool | None = None
    for line in _lines(path):
        has_session = line.session_id is not None
        if kind is not None and kind != has_session:
            wanted = "a session_id, as the lines before it" if kind else "no session_id, as the lines before it"
            raise TraceError(f"{line.where}: expected {wanted}")
        kind = has_session
        name = line.session_id if line.session_id is not None else f"request-{len(sessions):06d}"
        sessions.setdefault(name, []).append(line)
    if not sessions:
        raise TraceError(f"{path}: empty: expected at least one line")
    earliest_ms = min(lines[0].timestamp_ms or 0.0 for lines in sessions.values())
    return [
        SessionTrace(
            name,
            tuple(
                _turn(line, first=index == 0, vocab_size=vocab_size, scale=scale) for index, line in enumerate(lines)
            ),
            ((lines[0].timestamp_ms or 0.0) - earliest_ms) / 1000,
        )
        for name, lines in sessions.items()
    ]


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as sessions of per-turn deltas, plain or gzip by the name; `load_trace` gives it back."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in _rows(trace))
    # No time stamp within the gzip header: equal traces make equal files.
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
    write_atomically(path, data)


def _rows(trace: Trace) -> Iterator[dict[str, object]]:
    for session in trace.sessions:
        for index, turn in enumerate(session.turns):
            row: dict[str, object] = {"session_id": session.session_id}
            if index == 0:
                row["timestamp"] = round(session.arrival_s * 1000, 6)
            else:
                row["delay"] = round(turn.delay_s * 1000, 6)
            row |= {
                "input_length": len(turn.append),
                "output_length": len(turn.generate),
                "hash_ids": list(turn.append.ids),
            }
            if turn.append.tokens_per_id != MOONCAKE_TOKENS_PER_ID:
                row[_PER_ID] = turn.append.tokens_per_id
            yield row


def _turn(line: _Line, *, first: bool, vocab_size: int, scale: float) -> Turn:
    if not first and line.timestamp_ms is not None:
        raise TraceError(f"{line.where}: timestamp: expected on a session's first line only; later ones have delay")
    per_id = max(1, round(line.tokens_per_id * scale))
    last = line.input_length - (len(line.ids) - 1) * line.tokens_per_id
    append = (len(line.ids) - 1) * per_id + min(per_id, max(1, round(last * scale)))
    generate = max(1, round(line.output_length * scale))
    turn = turn_from_ids(line.ids, append, generate, per_id, vocab_size)
    return replace(turn, delay_s=(line.delay_ms or 0.0) / 1000)


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if data.strip():
                    yield _checked(data, f"{path}:{number}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: not a whole gzip file: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error


def _checked(data: bytes, where: str) -> _Line:
    try:
        row = json.loads(data)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where}: not JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TraceError(f"{where}: {_shown(row)}: expected a JSON object")
    line = _Line(
        where=where,
        session_id=_name(row, where),
        timestamp_ms=_time(row, "timestamp", where),
        delay_ms=_time(row, "delay", where),
        input_length=_count(row, "input_length", where),
        output_length=_count(row, "output_length", where),
        ids=_ids(row, where),
        tokens_per_id=_count(row, _PER_ID, where, default=MOONCAKE_TOKENS_PER_ID),
    )
    needed = -(-line.input_length // line.tokens_per_id)
    if len(line.ids) != needed:
        raise TraceError(
            f"{where}: hash_ids has {len(line.ids)} ids: expected {needed}, one for each "
            f"{line.tokens_per_id} tokens of input_length ({line.input_length})"
        )
    return line


def _name(row: dict[str, Any], where: str) -> str | None:
    name = row.get("session_id")
    if "session_id" in row and (not isinstance(name, str) or not name):
        raise TraceError(f"{where}: session_id = {_shown(name)}: expected a string that is not empty")
    return name


def _count(row: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = row.get(key, default)
    if value is None and key not in row:
        raise TraceError(f"{where}: {key} is missing: expected an integer of at least 1")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TraceError(f"{where}: {key} = {_shown(value)}: expected an integer of at least 1")
    return value


def _time(row: dict[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise TraceError(f"{where}: {key} = {_shown(value)}: expected milliseconds, at least 0")
    return float(value)


def _ids(row: dict[str, Any], where: str) -> tuple[int, ...]:
    ids = row.get("hash_ids")
    if ids is None:
        raise TraceError(f"{where}: hash_ids is missing: expected an array of integers")
    if not isinstance(ids, list):
        raise TraceError(f"{where}: hash_ids = {_shown(ids)}: expected an array of integers")
    for value in ids:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_ID:
            raise TraceError(f"{where}: hash_ids holds {_shown(value)}: expected integers from 0 to {_MAX_ID}")
    return tuple(ids)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
