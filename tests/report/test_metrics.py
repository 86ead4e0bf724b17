"""The metrics, against runs that are worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from dualpath_scheduler.report import RunRecord, summarise


def test_a_summary_has_the_keys_of_the_report(basic: RunRecord, dualpath: RunRecord) -> None:
    keys = {
        "completion_s",
        "prompt_tokens_per_s",
        "generated_tokens_per_s",
        "ttft_p50_s",
        "ttft_p99_s",
        "ttft_parts_s",
        "tpot_p50_s",
        "hit_rate",
        "bytes_read_prefill_side",
        "bytes_read_decode_side",
        "bytes_read_memory",
        "snic_busy_share",
        "snic_bytes_max_over_mean",
        "requests",
        "failed",
        "recomputed_blocks",
        "dropped_blocks",
    }
    assert set(summarise([dualpath])["dualpath"]) == keys
    both = summarise([basic, dualpath])
    assert list(both) == ["basic", "dualpath"]
    assert all(set(summary) == keys | {"speedup_over_basic"} for summary in both.values())


def test_a_run_without_failures(basic: RunRecord) -> None:
    summary = summarise([basic])["basic"]
    assert summary["completion_s"] == 10.0
    assert summary["prompt_tokens_per_s"] == 900.0
    assert summary["generated_tokens_per_s"] == pytest.approx(9.9)
    assert (summary["ttft_p50_s"], summary["ttft_p99_s"]) == (1.0, 1.0)
    assert summary["tpot_p50_s"] == pytest.approx(0.05)
    assert summary["hit_rate"] == 0.96
    assert (summary["bytes_read_prefill_side"], summary["bytes_read_decode_side"]) == (216_000_000, 0)
    assert (summary["bytes_read_memory"], summary["dropped_blocks"]) == (0, 0)
    assert summary["snic_busy_share"] == {"prefill-0": 0.9, "decode-0": 0.0}
    # The decode node could not read: it does not count.
    assert summary["snic_bytes_max_over_mean"] == 1.0
    assert (summary["requests"], summary["failed"], summary["recomputed_blocks"]) == (9, 0, 0)
    assert summary["speedup_over_basic"] == 1.0


def test_failed_requests_count_but_have_no_latency(basic: RunRecord, dualpath: RunRecord) -> None:
    summary = summarise([dualpath, basic])["dualpath"]
    assert (summary["requests"], summary["failed"], summary["recomputed_blocks"]) == (3, 1, 2)
    # The first took its second in the parts that the fixture has; the second half a second more, in prefill.
    assert summary["ttft_parts_s"] == {"queueing": 0.125, "reading": 0.625, "prefill": 0.5}
    # The failed request was the last to end.
    assert summary["completion_s"] == 5.0
    assert summary["speedup_over_basic"] == 2.0
    assert summary["prompt_tokens_per_s"] == 400.0
    assert summary["generated_tokens_per_s"] == pytest.approx(4.4)
    # First tokens after 1.0 and 1.5 s.
    assert summary["ttft_p50_s"] == 1.25
    assert summary["ttft_p99_s"] == pytest.approx(1.495)
    assert summary["snic_bytes_max_over_mean"] == 1.5
    assert summary["snic_busy_share"] == {"prefill-0": 0.8, "decode-0": 0.2}


def test_one_token_has_no_time_per_token(basic: RunRecord, request_record: Any) -> None:
    requests = (request_record(0, generated_tokens=1, end_s=1.0), request_record(1, generated_tokens=6, end_s=2.5))
    assert summarise([replace(basic, requests=requests)])["basic"]["tpot_p50_s"] == pytest.approx(0.1)


def test_what_nothing_defines_is_none(basic: RunRecord, request_record: Any) -> None:
    failed = request_record(0, first_token_s=None, end_s=None, error="refused")
    idle = tuple(replace(node, snic_read_bytes=0, snic_busy_s=0.0) for node in basic.nodes)
    for requests in ((), (failed,)):
        summary = summarise([replace(basic, requests=requests, nodes=idle)])["basic"]
        assert summary["completion_s"] == 0.0
        assert summary["failed"] == len(requests)
        assert summary["snic_busy_share"] == {"prefill-0": None, "decode-0": None}
        for key in ("prompt_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "hit_rate"):
            assert summary[key] is None  # type: ignore[literal-required]
        assert summary["snic_bytes_max_over_mean"] is None
        assert summary["speedup_over_basic"] is None


def test_a_mode_runs_once(basic: RunRecord) -> None:
    with pytest.raises(ValueError, match="mode 'basic' ran twice: expected one run a mode"):
        summarise([basic, basic])
