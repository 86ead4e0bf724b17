"""Runs whose metrics can be worked out by hand."""

from collections.abc import Callable

import pytest

from dualpath_scheduler.report import NodeRecord, RequestRecord, RunRecord, SnicSample

MakeRequest = Callable[..., RequestRecord]


@pytest.fixture
def request_record() -> MakeRequest:
    """A request that took a second to its first token and half a second for the ten after it."""

    def make(index: int = 0, **changed: object) -> RequestRecord:
        values: dict[str, object] = {
            "request_id": f"r{index}",
            "session_id": f"s{index % 2}",
            "turn": index // 2,
            "arrival_s": float(index),
            "assigned_s": index + 0.125,
            "read_start_s": index + 0.25,
            "read_end_s": index + 0.75,
            "prefill_start_s": index + 0.5,
            "first_token_s": index + 1.0,
            "end_s": index + 1.5,
            "prompt_tokens": 1000,
            "generated_tokens": 11,
            "hit_tokens": 960,
            "miss_tokens": 40,
            "prefill_side_blocks": 15,
            "decode_side_blocks": 0,
            "recomputed_blocks": 0,
            "prefill_node": "prefill-0",
            "prefill_engine": 0,
            "decode_node": "decode-0",
            "decode_engine": 1,
            "attempts": 1,
        }
        return RequestRecord(**(values | changed))  # type: ignore[arg-type]

    return make


@pytest.fixture
def basic(request_record: MakeRequest) -> RunRecord:
    """Ten seconds in which the prefill side alone reads, 24 MB/s at the most."""
    samples = tuple(SnicSample(float(second), 1.0, 24_000_000, 0) for second in range(9))
    written = tuple(SnicSample(float(second), 1.0, 0, 1_000_000) for second in range(10))
    return RunRecord(
        mode="basic",
        started_unix_s=1000.0,
        finished_unix_s=1010.5,
        requests=(*(request_record(index) for index in range(8)), request_record(8, end_s=10.0)),
        nodes=(
            NodeRecord("prefill-0", "prefill", 9 * 24_000_000, 0, 9.0, samples, snic_limit_bytes_per_s=24e6),
            NodeRecord("decode-0", "decode", 0, 10_000_000, 0.0, written, may_read=False, snic_limit_bytes_per_s=24e6),
        ),
    )


@pytest.fixture
def dualpath(request_record: MakeRequest) -> RunRecord:
    """Five seconds in which the decode side reads a third of what the prefill side reads."""
    return RunRecord(
        mode="dualpath",
        started_unix_s=2000.0,
        finished_unix_s=2005.0,
        requests=(
            request_record(0),
            request_record(1, first_token_s=2.5, end_s=3.0, recomputed_blocks=2),
            request_record(
                2, first_token_s=None, end_s=5.0, generated_tokens=0, error="node decode-0 lost", attempts=3
            ),
        ),
        nodes=(
            NodeRecord("prefill-0", "prefill", 90_000_000, 0, 4.0, (SnicSample(0.0, 5.0, 90_000_000, 0),)),
            NodeRecord("decode-0", "decode", 30_000_000, 0, 1.0, (SnicSample(1.0, 1.0, 30_000_000, 0),)),
        ),
    )
