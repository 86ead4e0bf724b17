"""Small traces and results that stand for those of a replay."""

import json
from collections.abc import Sequence
from pathlib import Path

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import TokenChoice
from dualpath_jax.engine.oracle import build_oracle
from dualpath_jax.replay.play import PlayedTurn, TurnKey
from dualpath_jax.replay.run import ModeRun
from dualpath_jax.rollout import Generation, RequestTimings
from dualpath_scheduler.report import RunRecord
from dualpath_scheduler.workload import Trace, load_trace

START = 1_700_000_000.0


def write_trace(file: Path, *, sessions: int = 3, turns: int = 4, append: int = 20, generate: int = 5) -> Path:
    """A file of sessions whose turns add `append` tokens and generate `generate`, a few more each time."""
    rows = []
    for session in range(sessions):
        for turn in range(turns):
            length = append + turn
            row = {"session_id": f"s{session}", "input_length": length, "output_length": generate + turn % 2}
            row |= {"hash_ids": [1000 * session + turn], "tokens_per_hash_id": length}
            rows.append(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def small_trace(folder: Path, spec: ClusterSpec, **shape: int) -> Trace:
    """What `write_trace` writes, loaded."""
    return load_trace(str(write_trace(folder / "trace.jsonl", **shape)), vocab_size=spec.model.vocab_size)


def choice(token: int = 5, logprob: float = -1.0, *, top: tuple[int, int] = (5, 6), margin: float = 1.0) -> TokenChoice:
    """A position whose best token has log-probability -1."""
    return TokenChoice(token, logprob, top, (-1.0, -1.0 - margin))


def generation(choices: Sequence[TokenChoice] = (), **fields: object) -> Generation:
    """A request that went through every stage, a tenth of a second each, from one second after START."""
    stages = {name: START + 1 + i / 10 for i, name in enumerate(RequestTimings.__dataclass_fields__)}
    plain = {
        "choices": tuple(choices),
        "timings": RequestTimings(**stages),
        "prompt_tokens": 100,
        "hit_tokens": 64,
        "prefill_side_blocks": 3,
        "decode_side_blocks": 5,
        "recomputed_blocks": 0,
        "prefill_node": "prefill-0",
        "prefill_engine": 1,
        "decode_node": "decode-0",
        "decode_engine": 0,
        "attempts": 1,
    }
    return Generation(**{**plain, **fields})


def faithful_choices(spec: ClusterSpec, trace: Trace) -> dict[TurnKey, list[TokenChoice]]:
    """What every turn of a trace must give, on the fake engine."""
    oracle, _ = build_oracle(spec)
    return {
        (session.session_id, i): oracle(session.prompt_tokens(i).tolist(), turn.generate_tokens.tolist())
        for session in trace.sessions
        for i, turn in enumerate(session.turns)
    }


def mode_run(mode: str, choices: dict[TurnKey, list[TokenChoice]], failed: Sequence[TurnKey] = ()) -> ModeRun:
    """A run with these results, and failures for some turns."""
    turns = [PlayedTurn(*key, 10, START, generation(chosen)) for key, chosen in choices.items() if key not in failed]
    turns += [PlayedTurn(*key, 10, START, None, "node prefill-0 died") for key in failed]
    return ModeRun(RunRecord(mode, START, START + 1, (), ()), tuple(turns))
