"""`dualpath-replay` on the Flax engine: real processes, a real model, real KV, and what agrees with what."""

import json

from tests.cluster.flax_cluster import TINY
from tests.launch.commands import run
from tests.replay.samples import write_trace


def _overrides() -> list[str]:
    shape = {key: value for key, value in TINY.items() if value is not None}
    shape |= {"network.snic_bytes_per_s": 4e6, "scheduling.layers_per_group": 3}
    return [f"--set={key}={list(value) if isinstance(value, tuple) else value}" for key, value in shape.items()]


def test_a_replay_on_the_model_agrees_with_the_reference_and_goes_on_from_storage(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", sessions=3, turns=4, append=12, generate=4)
    flags = [
        *_overrides(),
        "--check_requests=12",
        f"--trace={trace}",
        f"--set=storage.url=file://{tmp_path / 'kv'}",
        f"--compilation_cache={tmp_path / 'programs'}",
    ]
    hit_rates = []
    for life in ("first", "second"):
        report = tmp_path / life
        ended = run("dualpath-replay", *flags, f"--report={report}", timeout_s=200)
        assert ended.status == 0, ended.errors
        assert "dualpath agrees with the no-cache reference: 12 requests, 54 tokens" in ended.output
        summary = json.loads((report / "report.json").read_text())["modes"]["dualpath"]
        assert (summary["requests"], summary["failed"], summary["recomputed_blocks"]) == (12, 0, 0)
        hit_rates.append(summary["hit_rate"])
    assert 0 < hit_rates[0] < hit_rates[1]
