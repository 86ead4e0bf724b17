"""Generated traces have the statistics of the paper's table and share nothing between sessions."""

import shlex
from pathlib import Path
from statistics import mean

import pytest

import dualpath_scheduler.workload.generate as command
from dualpath_scheduler.workload import PAPER_TRACES, SessionTrace, TraceError, generate_trace, load_trace

SHIPPED = Path(command.__file__).parent / "traces" / "demo.jsonl"


def total(session: SessionTrace) -> int:
    return sum(len(turn.append) + len(turn.generate) for turn in session.turns)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(PAPER_TRACES))
def test_the_papers_means(name: str, seed: int) -> None:
    """All five within 5 % over 500 sessions at scale 1, and no session beyond the longest length."""
    paper = PAPER_TRACES[name]
    sessions = generate_trace(name, seed=seed, vocab_size=2048).sessions
    assert len(sessions) == 500
    assert mean(len(s.turns) for s in sessions) == pytest.approx(paper.turns, rel=0.05)
    appends = mean(mean(len(turn.append) for turn in s.turns) for s in sessions)
    assert appends == pytest.approx(paper.append_tokens, rel=0.05)
    generations = mean(mean(len(turn.generate) for turn in s.turns) for s in sessions)
    assert generations == pytest.approx(paper.generate_tokens, rel=0.05)
    assert mean(map(total, sessions)) == pytest.approx(paper.total_tokens, rel=0.05)
    contexts = mean(mean(s.prompt_lengths()) for s in sessions)
    assert contexts == pytest.approx(paper.context_tokens, rel=0.05)
    assert max(map(total, sessions)) <= paper.max_tokens


def test_few_sessions_are_close_too() -> None:
    sessions = generate_trace("paper-64k", sessions=12, seed=3, vocab_size=2048).sessions
    assert mean(map(total, sessions)) == pytest.approx(55_958, rel=0.05)
    assert mean(len(s.turns) for s in sessions) == pytest.approx(157, rel=0.15)


def test_the_scale_shrinks_lengths_and_not_turns() -> None:
    whole = generate_trace("paper-32k", sessions=20, vocab_size=2048)
    tenth = generate_trace("paper-32k", sessions=20, scale=0.1, vocab_size=2048)
    assert [len(s.turns) for s in tenth.sessions] == [len(s.turns) for s in whole.sessions]
    assert sum(map(total, tenth.sessions)) == pytest.approx(0.1 * sum(map(total, whole.sessions)), rel=0.01)


def test_lengths_never_fall_below_one_token() -> None:
    trace = generate_trace("paper-32k", sessions=10, scale=1e-6, vocab_size=2048)
    assert {(len(t.append), len(t.generate)) for s in trace.sessions for t in s.turns} == {(1, 1)}


def test_first_prompts_and_generations_have_their_own_size() -> None:
    options: dict[str, float] = {"first_prompt_tokens": 1500, "generation_scale": 0.05}
    plain = generate_trace("paper-64k", sessions=100, scale=0.2, max_turns=10, vocab_size=2048)
    shaped = generate_trace("paper-64k", sessions=100, scale=0.2, max_turns=10, vocab_size=2048, **options)
    assert mean(len(s.turns[0].append) for s in shaped.sessions) == pytest.approx(1500, rel=0.1)
    generated = [sum(len(t.generate) for s in trace.sessions for t in s.turns) for trace in (plain, shaped)]
    assert generated[1] == pytest.approx(generated[0] / 4, rel=0.1)
    later = [[len(t.append) for s in trace.sessions for t in s.turns[1:]] for trace in (plain, shaped)]
    assert later[1] == later[0]


def test_max_turns_cuts_the_same_sessions() -> None:
    whole = generate_trace("paper-32k", sessions=10, scale=0.1, seed=4, vocab_size=2048)
    cut = generate_trace("paper-32k", sessions=10, scale=0.1, seed=4, max_turns=5, vocab_size=2048)
    for session, shorter in zip(whole.sessions, cut.sessions, strict=True):
        lengths = [(len(turn.append), len(turn.generate)) for turn in session.turns]
        assert [(len(turn.append), len(turn.generate)) for turn in shorter.turns] == lengths[:5]


def test_seeds_decide_everything() -> None:
    first, again, other = (generate_trace("paper-32k", sessions=3, seed=seed, vocab_size=2048) for seed in (5, 5, 6))
    assert first == again
    ids = [{i for s in trace.sessions for t in s.turns for i in t.append.ids} for trace in (first, other)]
    assert not ids[0] & ids[1]


def test_nothing_is_shared_between_sessions() -> None:
    trace = generate_trace("paper-64k", sessions=8, scale=0.05, vocab_size=2048)
    seen: dict[bytes, str] = {}
    for session in trace.sessions:
        tokens = session.prompt_tokens(len(session.turns) - 1)
        for start in range(len(tokens) - 15):
            window = tokens[start : start + 16].tobytes()
            assert seen.setdefault(window, session.session_id) == session.session_id


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"preset": "paper-1k"}, "preset = 'paper-1k': expected one of paper-32k, paper-48k, paper-64k"),
        ({"seed": -1}, "seed = -1: expected at least 0"),
        ({"scale": 0.0}, "scale = 0.0: expected a finite number above 0"),
        ({"scale": float("nan")}, "scale = nan: expected a finite number above 0"),
        ({"sessions": 0}, "sessions = 0: expected at least 1"),
        ({"max_turns": 0}, "max_turns = 0: expected at least 1"),
        ({"first_prompt_tokens": -5.0}, "first_prompt_tokens = -5.0: expected a finite number above 0"),
    ],
)
def test_wrong_arguments(changed: dict[str, object], expected: str) -> None:
    arguments: dict[str, object] = {"preset": "paper-32k", "vocab_size": 2048} | changed
    with pytest.raises(TraceError) as caught:
        generate_trace(arguments.pop("preset"), **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(expected)


def test_the_command_makes_the_shipped_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.__doc__ is not None
    documented = command.__doc__.partition("is made by")[2].partition("\n\nIts seed")[0].replace("\\\n", " ")
    arguments = shlex.split(documented.partition("workload.generate ")[2])
    assert arguments[-1].endswith("workload/traces/demo.jsonl")
    out = tmp_path / "demo.jsonl"
    assert command.main([*arguments[:-1], str(out)]) == 0
    assert "sessions" in capsys.readouterr().out
    assert out.read_bytes() == SHIPPED.read_bytes()


def test_the_demo_fits_the_presets() -> None:
    trace = load_trace("demo", vocab_size=2048, max_context_tokens=8192)
    assert (trace.cut_turns, trace.dropped_sessions) == (0, 0)
    summary = trace.summary()
    assert summary["sessions"] == len(trace.sessions) >= 8
    longest = max(length for session in trace.sessions for length in session.prompt_lengths())
    assert 2000 <= longest <= 8000


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--scale", "-1", "--out", str(tmp_path / "x.jsonl")]) == 2
    assert capsys.readouterr().err == "scale = -1.0: expected a finite number above 0\n"
    assert command.main(["--sessions", "1", "--scale", "0.01", "--out", str(tmp_path / "no" / "x.jsonl")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
