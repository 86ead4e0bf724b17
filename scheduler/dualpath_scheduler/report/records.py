"""What a run leaves behind, real or simulated: its requests, and what passed its nodes' cards.

Times of requests and samples are seconds since the run's start.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, final

import numpy as np


@dataclass(frozen=True)
class RequestRecord:
    """One turn of one session. A time that was never reached is None."""

    request_id: str
    session_id: str
    turn: int
    arrival_s: float
    assigned_s: float | None
    """Both sides known, the read plan fixed."""
    read_start_s: float | None
    read_end_s: float | None
    prefill_start_s: float | None
    first_token_s: float | None
    end_s: float | None
    prompt_tokens: int
    generated_tokens: int
    hit_tokens: int
    """Tokens of the prompt whose KV was loaded."""
    miss_tokens: int
    """Tokens of the prompt that were computed."""
    prefill_side_blocks: int
    """Read plan: blocks from the front that the prefill side was to read."""
    decode_side_blocks: int
    """Read plan: blocks after those that the decode side was to read."""
    recomputed_blocks: int
    """Blocks of the plan that were missing, late or damaged."""
    prefill_node: str
    prefill_engine: int
    decode_node: str
    decode_engine: int
    attempts: int
    error: str = ""
    """Why it failed; empty: it did not."""

    @property
    def failed(self) -> bool:
        return bool(self.error)


@final
@dataclass(frozen=True, eq=False)
class RequestColumns:
    """The requests of a run as arrays, `[requests]` each, which metrics are made of: millions take no object each.

    Times are float64, NaN where never reached; counts are integers.
    """

    arrival_s: np.ndarray
    assigned_s: np.ndarray
    read_end_s: np.ndarray
    first_token_s: np.ndarray
    end_s: np.ndarray
    prompt_tokens: np.ndarray
    generated_tokens: np.ndarray
    hit_tokens: np.ndarray
    recomputed_blocks: np.ndarray
    failed: np.ndarray

    @classmethod
    def of(cls, requests: Iterable[RequestRecord]) -> Self:
        """The columns of these records."""
        rows = list(requests)
        times = {
            name: np.array([getattr(row, name) for row in rows], np.float64)
            for name in ("arrival_s", "assigned_s", "read_end_s", "first_token_s", "end_s")
        }
        counts = {
            name: np.array([getattr(row, name) for row in rows], np.int64)
            for name in ("prompt_tokens", "generated_tokens", "hit_tokens", "recomputed_blocks")
        }
        return cls(**times, **counts, failed=np.array([row.failed for row in rows], bool))

    def __len__(self) -> int:
        return len(self.failed)

    def sum_of_succeeded(self, counts: np.ndarray) -> int:
        """Of one of the columns, over the requests that did not fail."""
        return int(counts[~self.failed].sum())


@dataclass(frozen=True)
class SnicSample:
    """Bytes that passed a node's storage card in `[time_s, time_s + seconds)`."""

    time_s: float
    seconds: float
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class NodeRecord:
    """What passed one node's cards during the run."""

    node_id: str
    role: Literal["prefill", "decode"]
    snic_read_bytes: int
    snic_written_bytes: int
    snic_busy_s: float
    """Time in which the storage card had reads to do."""
    samples: tuple[SnicSample, ...] = ()
    cnic_bytes: tuple[int, ...] = ()
    """Per engine."""
    may_read: bool = True
    """Whether this run lets the node read KV from storage; without the dual path, decode nodes may not."""
    snic_limit_bytes_per_s: float | None = None
    """The card's rate, for plots; None: no limit."""
    memory_read_bytes: int = 0
    """Read from the node's DRAM tier: they passed no card, and are in no other count."""
    dropped_blocks: int = 0
    """Blocks that the store did not take."""


@dataclass(frozen=True)
class RunRecord:
    """One run of a trace in one mode."""

    mode: str
    started_unix_s: float
    """Wall clock of the run's start, since the epoch; 0 in a simulation."""
    finished_unix_s: float
    requests: tuple[RequestRecord, ...]
    """All of them, or, beside `every_request`, those of a part of the sessions."""
    nodes: tuple[NodeRecord, ...]
    every_request: RequestColumns | None = None
    """Where a run has more than are worth an object each."""

    @cached_property
    def columns(self) -> RequestColumns:
        """What the metrics look at: every request of the run."""
        return RequestColumns.of(self.requests) if self.every_request is None else self.every_request
