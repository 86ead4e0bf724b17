"""Files in Mooncake's two formats: what they mean, what is cut, and one line for what is wrong."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dualpath_scheduler.workload import Trace, TraceError, generate_trace, load_trace, save_trace, trace_names

REQUESTS = [
    {"timestamp": 1000, "input_length": 1124, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1040, "input_length": 1536, "output_length": 4, "hash_ids": [0, 1, 3]},
    {"timestamp": 1040, "input_length": 512, "output_length": 3, "hash_ids": [9]},
]
SESSIONS = [
    {
        "session_id": "a",
        "timestamp": 500.0,
        "input_length": 700,
        "output_length": 30,
        "hash_ids": [0, 1],
        "group_id": 4,
    },
    {"session_id": "b", "timestamp": 250, "input_length": 600, "output_length": 20, "hash_ids": [0, 2]},
    {"session_id": "a", "delay": 1500.5, "input_length": 90, "output_length": 10, "hash_ids": [3]},
    {"session_id": "b", "input_length": 80, "output_length": 1, "hash_ids": [4]},
    {"session_id": "a", "delay": 0, "input_length": 600, "output_length": 2, "hash_ids": [5, 6]},
]


def write(folder: Path, rows: list[dict[str, object]], name: str = "trace.jsonl") -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def load(path: str, **options: object) -> Trace:
    return load_trace(path, vocab_size=2048, **options)  # type: ignore[arg-type]


def lengths(trace: Trace) -> list[list[tuple[int, int]]]:
    return [[(len(t.append), len(t.generate)) for t in s.turns] for s in trace.sessions]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_request_is_a_session_of_one_turn(tmp_path: Path, name: str) -> None:
    trace = load(write(tmp_path, REQUESTS, name))
    assert trace.name == name
    assert lengths(trace) == [[(1124, 5)], [(1536, 4)], [(512, 3)]]
    assert [s.arrival_s for s in trace.sessions] == [0.0, 0.04, 0.04]
    assert len({s.session_id for s in trace.sessions}) == 3
    first, second, third = (s.prompt_tokens(0) for s in trace.sessions)
    np.testing.assert_array_equal(first[:1024], second[:1024])
    assert (first[1024:] != second[1024:1124]).any()
    assert (third != first[:512]).any()


def test_a_session_is_its_lines_in_order(tmp_path: Path) -> None:
    trace = load(write(tmp_path, SESSIONS))
    a, b = trace.sessions
    assert (a.session_id, b.session_id) == ("a", "b")
    assert (a.arrival_s, b.arrival_s) == (0.25, 0.0)
    assert lengths(trace) == [[(700, 30), (90, 10), (600, 2)], [(600, 20), (80, 1)]]
    assert [turn.delay_s for turn in a.turns] == [0.0, 1.5005, 0.0]
    np.testing.assert_array_equal(a.prompt_tokens(0)[:512], b.prompt_tokens(0)[:512])
    assert list(a.prompt_lengths()) == [700, 820, 1430]


def test_generations_follow_from_the_ids(tmp_path: Path) -> None:
    """Equal inputs are followed by equal generations, others by others, and none repeats its input."""
    rows = [*REQUESTS, REQUESTS[0] | {"output_length": 3}]
    first, second, _, again = (s.turns[0] for s in load(write(tmp_path, rows)).sessions)
    np.testing.assert_array_equal(again.generate_tokens, first.generate_tokens[:3])
    assert (first.generate_tokens[:4] != second.generate_tokens).any()
    assert (first.generate_tokens != first.append_tokens[1024:1029]).any()


def test_shrunk_lengths_share_what_was_shared(tmp_path: Path) -> None:
    trace = load(write(tmp_path, REQUESTS), scale=0.1)
    # 51 tokens an id; the last id of the first request had 100 of its 512.
    assert lengths(trace) == [[(2 * 51 + 10, 1)], [(3 * 51, 1)], [(51, 1)]]
    first, second = (s.prompt_tokens(0) for s in trace.sessions[:2])
    np.testing.assert_array_equal(first[:102], second[:102])
    assert (first[102:] != second[102:112]).any()
    assert lengths(load(write(tmp_path, REQUESTS), scale=1e-9)) == [[(3, 1)], [(3, 1)], [(1, 1)]]


def test_limits(tmp_path: Path) -> None:
    path = write(tmp_path, SESSIONS)
    assert lengths(load(path, max_sessions=1)) == [[(700, 30), (90, 10), (600, 2)]]
    assert lengths(load(path, max_turns=1)) == [[(700, 30)], [(600, 20)]]
    whole = load(path, max_context_tokens=1432)
    assert (whole.cut_turns, whole.dropped_sessions) == (0, 0)
    cut = load(path, max_context_tokens=700)
    assert lengths(cut) == [[(600, 20)]]
    assert (cut.cut_turns, cut.dropped_sessions) == (4, 1)
    assert cut.summary() == {
        "name": "trace.jsonl",
        "sessions": 1,
        "turns": 1,
        "appended_tokens": 600,
        "generated_tokens": 20,
        "prompt_tokens": 600,
        "longest_context_tokens": 620,
        "cut_turns": 4,
        "dropped_sessions": 1,
    }


@pytest.mark.parametrize("limit", [699, 730, 830, 1431])
def test_what_is_left_fits_and_what_is_cut_is_counted(tmp_path: Path, limit: int) -> None:
    trace = load(write(tmp_path, SESSIONS), max_context_tokens=limit)
    assert trace.summary()["longest_context_tokens"] <= limit  # type: ignore[operator]
    assert trace.cut_turns + sum(len(s.turns) for s in trace.sessions) == len(SESSIONS)


def test_nothing_that_fits_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"no session's first turn fits max_context_tokens \(64\), the shortest has 620"
    ):
        load(write(tmp_path, SESSIONS), max_context_tokens=64)


@pytest.mark.parametrize("name", ["saved.jsonl", "saved.jsonl.gz"])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_what_is_saved_loads_as_it_was(tmp_path: Path, name: str, scale: float) -> None:
    sources = [load(write(tmp_path, rows), scale=scale) for rows in (REQUESTS, SESSIONS)]
    sources.append(generate_trace("paper-32k", scale=0.1 * scale, sessions=3, max_turns=4, vocab_size=2048))
    for trace in sources:
        save_trace(trace, tmp_path / name)
        assert load(str(tmp_path / name)).sessions == trace.sessions
        first = (tmp_path / name).read_bytes()
        save_trace(trace, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == [name, "trace.jsonl"]


def test_names() -> None:
    assert trace_names() == ["paper-32k", "paper-48k", "paper-64k", "demo"]
    paper = load("paper-48k", scale=0.05, max_sessions=4, max_turns=6, seed=2)
    assert paper == generate_trace("paper-48k", scale=0.05, sessions=4, max_turns=6, seed=2, vocab_size=2048)
    assert len(load("demo", max_sessions=3, max_turns=2).sessions) == 3


def line(*without: str, **changed: object) -> str:
    """A request as a line of a file, with something changed or left out."""
    row = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [7]} | changed
    return json.dumps({key: value for key, value in row.items() if key not in without}) + "\n"


IN_SESSION = line(session_id="a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ": empty: expected at least one line"),
        ("\n\n", ": empty: expected at least one line"),
        (line() + line()[:40], ":2: not JSON: "),
        ("[1]\n", ":1: [1]: expected a JSON object"),
        (line("input_length"), ":1: input_length is missing: expected an integer of at least 1"),
        (line("output_length"), ":1: output_length is missing: expected an integer of at least 1"),
        (line("hash_ids"), ":1: hash_ids is missing: expected an array of integers"),
        (line(input_length=-3), ":1: input_length = -3: expected an integer of at least 1"),
        (line(input_length=3.5), ":1: input_length = 3.5: expected an integer of at least 1"),
        (line(input_length=True), ":1: input_length = true: expected an integer of at least 1"),
        (line(input_length=None), ":1: input_length = null: expected an integer of at least 1"),
        (line(output_length=0), ":1: output_length = 0: expected an integer of at least 1"),
        (line(hash_ids=7), ":1: hash_ids = 7: expected an array of integers"),
        (line(hash_ids=[-7]), ":1: hash_ids holds -7: expected integers from 0 to 9223372036854775807"),
        (line(hash_ids=["x"]), ':1: hash_ids holds "x": expected integers from 0'),
        (line(hash_ids=[2**63]), ":1: hash_ids holds 9223372036854775808: expected integers from 0"),
        (line(hash_ids=[]), ":1: hash_ids has 0 ids: expected 1, one for each 512 tokens of input_length (3)"),
        (line(input_length=513), ":1: hash_ids has 1 ids: expected 2, one for each 512 tokens of input_length (513)"),
        (line(hash_ids=[7, 8]), ":1: hash_ids has 2 ids: expected 1, one for each 512 tokens of input_length (3)"),
        (line(timestamp="0"), ':1: timestamp = "0": expected milliseconds, at least 0'),
        (line(timestamp=float("nan")), ":1: timestamp = NaN: expected milliseconds, at least 0"),
        (line(delay=-1), ":1: delay = -1: expected milliseconds, at least 0"),
        (line(session_id=4), ":1: session_id = 4: expected a string"),
        (line(session_id=""), ':1: session_id = "": expected a string that is not empty'),
        (IN_SESSION + line(), ":2: expected a session_id, as the lines before it"),
        (line() + IN_SESSION, ":2: expected no session_id, as the lines before it"),
        (IN_SESSION + IN_SESSION, ":2: timestamp: expected on a session's first line only"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}{expected}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no\.jsonl: no such file: expected a trace file, or one of paper-32k, "):
        load(str(tmp_path / "no.jsonl"))
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        load(str(tmp_path))
    path = Path(write(tmp_path, SESSIONS, "trace.jsonl.gz"))
    for data in (path.read_bytes()[:-9], b"not gzip", path.read_bytes()[:40] + b"\0\0\0\0" + path.read_bytes()[44:]):
        path.write_bytes(data)
        with pytest.raises(TraceError, match="not a whole gzip file: "):
            load(str(path))
    text = tmp_path / "binary.jsonl"
    text.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(TraceError, match=r"binary\.jsonl:1: not JSON: "):
        load(str(text))


@pytest.mark.parametrize(
    ("option", "value"), [("scale", 0.0), ("scale", -1.0), ("max_sessions", 0), ("max_turns", 0), ("vocab_size", 0)]
)
def test_wrong_options(option: str, value: float) -> None:
    options: dict[str, float] = {"vocab_size": 2048} | {option: value}
    with pytest.raises(TraceError, match=rf"^{option} = {value}: expected "):
        load_trace("demo", **options)  # type: ignore[arg-type]
