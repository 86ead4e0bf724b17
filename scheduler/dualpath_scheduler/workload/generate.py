"""Makes a trace file: `python -m dualpath_scheduler.workload.generate --preset paper-64k --scale 0.1 --out FILE`.

The shipped `traces/demo.jsonl` is made by

    python -m dualpath_scheduler.workload.generate --preset paper-64k --sessions 12 --turns 16 --scale 0.34 \\
      --generation_scale 0.06 --first_prompt 420 --seed 71 \\
      --out scheduler/dualpath_scheduler/workload/traces/demo.jsonl

Its seed is the one of 200 whose sessions differ least in what they read, so that few are left alone at the end.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dualpath_scheduler.workload.generator import PAPER_SESSIONS, PAPER_TRACES, generate_trace
from dualpath_scheduler.workload.mooncake import save_trace
from dualpath_scheduler.workload.trace import TraceError

_ANY_VOCAB = 2**31
"""A file holds ids and lengths; tokens are made from them when it is loaded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 with one line on standard error where an argument is wrong."""
    parser = argparse.ArgumentParser(prog="python -m dualpath_scheduler.workload.generate", allow_abbrev=False)
    parser.add_argument("--preset", choices=list(PAPER_TRACES), default="paper-64k")
    parser.add_argument("--sessions", type=int, default=PAPER_SESSIONS)
    parser.add_argument("--turns", type=int, help="sessions end after so many turns")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies lengths")
    parser.add_argument("--generation_scale", type=float, help="multiplies generations (default: --scale)")
    parser.add_argument("--first_prompt", type=float, help="mean tokens of first prompts (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, .jsonl or .jsonl.gz")
    flags = parser.parse_args(arguments)
    try:
        trace = generate_trace(
            flags.preset,
            scale=flags.scale,
            sessions=flags.sessions,
            max_turns=flags.turns,
            seed=flags.seed,
            vocab_size=_ANY_VOCAB,
            first_prompt_tokens=flags.first_prompt,
            generation_scale=flags.generation_scale,
        )
        save_trace(trace, flags.out)
    except (TraceError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(", ".join(f"{key} {value}" for key, value in trace.summary().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
