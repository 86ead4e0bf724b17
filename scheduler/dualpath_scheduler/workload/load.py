"""Traces by name or path, shrunk and cut to what a cluster can take."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

from dualpath_scheduler.workload.generator import PAPER_SESSIONS, PAPER_TRACES, generate_trace
from dualpath_scheduler.workload.mooncake import read_mooncake
from dualpath_scheduler.workload.trace import SessionTrace, Trace, TraceError, check_at_least_one, check_positive

_SHIPPED = resources.files("dualpath_scheduler.workload") / "traces"


def trace_names() -> list[str]:
    """Names that `load_trace` takes besides paths: the paper's traces, and files shipped here."""
    shipped = [entry.name.removesuffix(".jsonl") for entry in _SHIPPED.iterdir() if entry.name.endswith(".jsonl")]
    return [*PAPER_TRACES, *sorted(shipped)]


def load_trace(
    path_or_name: str,
    *,
    vocab_size: int,
    scale: float = 1.0,
    max_sessions: int | None = None,
    max_turns: int | None = None,
    seed: int = 0,
    max_context_tokens: int | None = None,
) -> Trace:
    """A trace of the paper, generated; a shipped one; or a Mooncake file of requests or sessions (`.gz` as well).

    Args:
        scale: multiplies lengths, not turns. Tokens that were shared stay shared.
        max_sessions: how many to generate, or to take from the front of a file; absent: the paper's 500, or all.
        max_turns: sessions end after so many turns.
        seed: of the generator; a file has its tokens from its ids.
        max_context_tokens: a session ends before the turn whose prompt and generation would exceed this. The trace says
            how many turns that cut, and how many sessions it left with none.

    Raises:
        TraceError: in one line, with `file:line` where there is one.
    """
    check_at_least_one(vocab_size=vocab_size, max_sessions=max_sessions, max_turns=max_turns)
    check_positive(scale=scale)
    if path_or_name in PAPER_TRACES:
        sessions = PAPER_SESSIONS if max_sessions is None else max_sessions
        trace = generate_trace(
            path_or_name, scale=scale, sessions=sessions, max_turns=max_turns, seed=seed, vocab_size=vocab_size
        )
    elif path_or_name in trace_names():
        with resources.as_file(_SHIPPED / f"{path_or_name}.jsonl") as path:
            trace = Trace(path_or_name, tuple(read_mooncake(path, vocab_size=vocab_size, scale=scale)))
    else:
        path = Path(path_or_name)
        if not path.exists():
            known = ", ".join(trace_names())
            raise TraceError(f"{path_or_name}: no such file: expected a trace file, or one of {known}")
        trace = Trace(path.name, tuple(read_mooncake(path, vocab_size=vocab_size, scale=scale)))
    sessions_taken = (replace(s, turns=s.turns[:max_turns]) for s in trace.sessions[:max_sessions])
    return _fitted(replace(trace, sessions=tuple(sessions_taken)), max_context_tokens)


def _fitted(trace: Trace, max_context_tokens: int | None) -> Trace:
    """The trace with every session cut before the first turn that exceeds the limit."""
    if max_context_tokens is None:
        return trace
    kept = []
    cut_turns = 0
    for session in trace.sessions:
        turns = _fitting_turns(session, max_context_tokens)
        cut_turns += len(session.turns) - turns
        if turns:
            kept.append(replace(session, turns=session.turns[:turns]))
    if not kept:
        shortest = min(len(s.turns[0].append) + len(s.turns[0].generate) for s in trace.sessions)
        raise TraceError(
            f"{trace.name}: no session's first turn fits max_context_tokens ({max_context_tokens}), the shortest has "
            f"{shortest}: expected a smaller scale or a longer context"
        )
    return replace(trace, sessions=tuple(kept), cut_turns=cut_turns, dropped_sessions=len(trace.sessions) - len(kept))


def _fitting_turns(session: SessionTrace, max_context_tokens: int) -> int:
    for index, (prompt, turn) in enumerate(zip(session.prompt_lengths(), session.turns, strict=True)):
        if prompt + len(turn.generate) > max_context_tokens:
            return index
    return len(session.turns)
