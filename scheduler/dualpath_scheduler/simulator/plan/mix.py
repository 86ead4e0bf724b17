"""What a request of a workload asks of each part of a cluster, on average."""

from dataclasses import dataclass
from typing import final

from dualpath_scheduler.simulator.workload import Workload
from dualpath_scheduler.workload import TraceError


@final
@dataclass(frozen=True)
class Mix:
    """Tokens of the mean request. `stored` are those of the blocks that it completes."""

    hit: float
    miss: float
    generated: float
    stored: float


def mix_of(workload: Workload, block_tokens: int) -> Mix:
    """Raises TraceError where no token is hit: there is nothing to read then, and nothing to plan for."""
    prompts, hits = workload.prompt_tokens(), workload.hit_tokens(block_tokens)
    if not hits.any():
        raise TraceError(f"{workload.name}: no token is hit: expected sessions of several turns")
    whole = (prompts + workload.generate_tokens) // block_tokens * block_tokens
    return Mix(
        hit=float(hits.mean()),
        miss=float((prompts - hits).mean()),
        generated=float(workload.generate_tokens.mean()),
        stored=float((whole - hits).mean()),
    )
