"""What a finished simulation says: the few numbers of a sweep, and the record that a report is made of."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from dualpath_scheduler.report import NodeRecord, RequestColumns, RequestRecord, RunRecord, SnicSample
from dualpath_scheduler.simulator.nodes import Node
from dualpath_scheduler.simulator.simulation import Simulation

BALANCE_WINDOW_S = 10.0
MOST_ROWS = 200_000
"""Requests of a run that a report has rows for; each takes about a kilobyte while it is made."""
_SAMPLES = 300
_EARLY = 0.05
"""The part of a run in which the paper measures the balance of attention times."""


@final
@dataclass(frozen=True)
class Outcome:
    """Times in seconds; TTFT from arrival to first token, TPOT over the tokens after the first."""

    requests: int
    completion_s: float
    ttft_mean_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    queueing_mean_s: float
    """From arrival to both engines known."""
    reading_mean_s: float
    prefill_mean_s: float
    """From the end of reading to the first token."""
    snic_busy_prefill: float
    """Share of the completion time, mean over the nodes of a role."""
    snic_busy_decode: float
    prefill_busy: float
    snic_max_over_mean: float | None
    """Bytes that the busiest storage card read over their mean, in windows of `BALANCE_WINDOW_S`, the windows' mean."""
    attention_max_over_mean: float | None
    """Attention time of a batch's slowest engine over the mean of its engines, in the first 5 % of the run."""


def outcome_of(run: Simulation) -> Outcome:
    times, completion_s = run.log.times, run.completion_s
    ttft = times["first_token_s"] - times["arrival_s"]
    after_first = run.workload.generate_tokens - 1
    tpot = (times["end_s"] - times["first_token_s"])[after_first > 0] / after_first[after_first > 0]
    units = [unit for node in run.prefill for unit in node.prefill_units]
    return Outcome(
        requests=run.workload.requests,
        completion_s=completion_s,
        ttft_mean_s=float(ttft.mean()),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        tpot_mean_s=float(tpot.mean()) if tpot.size else 0.0,
        tpot_p99_s=float(np.percentile(tpot, 99)) if tpot.size else 0.0,
        queueing_mean_s=float((times["assigned_s"] - times["arrival_s"]).mean()),
        reading_mean_s=float((times["read_end_s"] - times["assigned_s"]).mean()),
        prefill_mean_s=float((times["first_token_s"] - times["read_end_s"]).mean()),
        snic_busy_prefill=_busy(run.prefill, completion_s),
        snic_busy_decode=_busy(run.decode, completion_s),
        prefill_busy=sum(unit.busy_s for unit in units) / len(units) / completion_s,
        snic_max_over_mean=snic_max_over_mean(run, BALANCE_WINDOW_S),
        attention_max_over_mean=attention_max_over_mean(run, _EARLY * completion_s),
    )


def snic_max_over_mean(run: Simulation, window_s: float) -> float | None:
    """Over the nodes that may read, the mean over windows in which anything was read; None: nothing was."""
    nodes = [*run.prefill, *(run.decode if run.spec.mode.dual_path else ())]
    edges = np.arange(0.0, run.completion_s + window_s, window_s)
    read = np.array([_binned(node, edges) for node in nodes])
    read = read[:, read.sum(axis=0) > 0]
    return float((read.max(axis=0) / read.mean(axis=0)).mean()) if read.size else None


def attention_max_over_mean(run: Simulation, until_s: float) -> float | None:
    """Of the batches that began by then, weighted by their length; 1 is an even load. None: there were none."""
    slowest, mean = 0.0, 0.0
    for node in run.prefill:
        for unit in node.prefill_units:
            early = np.frombuffer(unit.batch_start_s) <= until_s
            slowest += float(np.frombuffer(unit.slowest_attention_s)[early].sum())
            mean += float(np.frombuffer(unit.attention_s)[early].sum()) / unit.engines
    return slowest / mean if mean else None


def run_record(run: Simulation, mode: str, most_rows: int = MOST_ROWS) -> RunRecord:
    """The record of a run for its report: all requests as columns, and about so many at most as an object each.

    Of a larger run those are the requests of every k-th session.
    """
    requests = tuple(_request_records(run, -(-run.workload.requests // most_rows)))
    return RunRecord(mode, 0.0, 0.0, requests, tuple(_node_records(run)), _columns(run))


def _columns(run: Simulation) -> RequestColumns:
    times, requests = run.log.times, run.workload.requests
    return RequestColumns(
        **{name: times[name] for name in ("arrival_s", "assigned_s", "read_end_s", "first_token_s", "end_s")},
        prompt_tokens=run.workload.prompt_tokens(),
        generated_tokens=run.workload.generate_tokens,
        hit_tokens=run.log.counts["hit_tokens"],
        recomputed_blocks=np.zeros(requests, np.int8),
        failed=np.zeros(requests, bool),
    )


def _request_records(run: Simulation, every: int) -> list[RequestRecord]:
    """Of the sessions whose number is a multiple of `every`."""
    workload, log, block_tokens = run.workload, run.log, run.spec.block_tokens
    session_of = np.repeat(np.arange(workload.sessions), np.diff(workload.first))
    chosen = np.flatnonzero(session_of % every == 0)
    times = {name: values[chosen].tolist() for name, values in log.times.items()}
    counts = {name: values[chosen].tolist() for name, values in log.counts.items()}
    prompts, hits = workload.prompt_tokens()[chosen].tolist(), counts["hit_tokens"]
    sessions, generated = session_of[chosen].tolist(), workload.generate_tokens[chosen].tolist()
    turns = (chosen - workload.first[session_of[chosen]]).tolist()
    return [
        RequestRecord(
            request_id=f"{session}.{turns[index]}",
            session_id=str(session),
            turn=turns[index],
            **{name: values[index] for name, values in times.items()},
            prompt_tokens=prompts[index],
            generated_tokens=generated[index],
            hit_tokens=hits[index],
            miss_tokens=prompts[index] - hits[index],
            prefill_side_blocks=counts["prefill_side_tokens"][index] // block_tokens,
            decode_side_blocks=(hits[index] - counts["prefill_side_tokens"][index]) // block_tokens,
            recomputed_blocks=0,
            prefill_node=run.prefill[counts["prefill_node"][index]].node_id,
            prefill_engine=counts["prefill_engine"][index],
            decode_node=run.decode[counts["decode_node"][index]].node_id,
            decode_engine=counts["decode_engine"][index],
            attempts=1,
        )
        for index, session in enumerate(sessions)
    ]


def _node_records(run: Simulation) -> list[NodeRecord]:
    return [
        *(_node_record(run, node, "prefill", True) for node in run.prefill),
        *(_node_record(run, node, "decode", run.spec.mode.dual_path) for node in run.decode),
    ]


def _node_record(run: Simulation, node: Node, role: Literal["prefill", "decode"], may_read: bool) -> NodeRecord:
    edges = np.linspace(0.0, run.completion_s, _SAMPLES + 1)
    seconds = float(edges[1])
    read = _binned(node, edges).tolist()
    return NodeRecord(
        node_id=node.node_id,
        role=role,
        snic_read_bytes=node.snic.total_bytes,
        snic_written_bytes=node.snic_write.total_bytes,
        snic_busy_s=node.snic.busy_s,
        samples=tuple(SnicSample(start, seconds, round(count), 0) for start, count in zip(edges, read, strict=False)),
        cnic_bytes=tuple(
            out.total_bytes + into.total_bytes for out, into in zip(node.cnic_read, node.cnic_write, strict=True)
        ),
        may_read=may_read,
        snic_limit_bytes_per_s=node.snic.rate,
        memory_read_bytes=node.tier_read_bytes,
    )


def _binned(node: Node, edges: np.ndarray) -> np.ndarray:
    """Bytes that a node's storage card read in each interval: a card at work reads at its rate."""
    ends, counts = np.frombuffer(node.read_end_s), np.frombuffer(node.read_bytes, np.int64)
    starts = ends - counts / node.snic.rate
    # Reads follow one another, so bytes read by a time are those of whole reads before it and of a part of one.
    whole = np.searchsorted(ends, edges, side="right")
    before = np.concatenate([[0], np.cumsum(counts)])[whole]
    begun = np.minimum(whole, len(ends) - 1)
    part = np.clip((edges - starts[begun]) * node.snic.rate, 0, None) if len(ends) else np.zeros(len(edges))
    return np.diff(before + np.where(whole < len(ends), part, 0.0))


def _busy(nodes: list[Node], completion_s: float) -> float:
    return sum(node.snic.busy_s for node in nodes) / len(nodes) / completion_s
