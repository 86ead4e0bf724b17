"""From what was played to the records that reports are made of."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dualpath_configs import ClusterSpec
from dualpath_jax.cluster.peer_pb2 import StatsReply
from dualpath_jax.replay.play import PlayedTurn
from dualpath_jax.rollout import Generation
from dualpath_scheduler.report import NodeRecord, RequestRecord, RunRecord, SnicSample


def run_record(
    mode: str,
    spec: ClusterSpec,
    turns: Sequence[PlayedTurn],
    stats: Mapping[str, StatsReply],
    *,
    started: float,
    finished: float,
) -> RunRecord:
    """One run; `started` and `finished` in wall-clock seconds. Nodes that do not live any more have no record."""
    nodes = tuple(_node(node_id, reply, spec, started) for node_id, reply in sorted(stats.items()))
    requests = tuple(_request(turn, started) for turn in sorted(turns, key=lambda turn: turn.arrival))
    return RunRecord(mode, started, finished, requests, nodes)


def _request(played: PlayedTurn, started: float) -> RequestRecord:
    if played.generation is None:
        return _failed_request(played, started)
    result: Generation = played.generation
    timings = result.timings

    def since_start(moment: float) -> float | None:
        return moment - started if moment else None

    return RequestRecord(
        request_id=f"{played.session_id}/{played.turn}",
        session_id=played.session_id,
        turn=played.turn,
        arrival_s=played.arrival - started,
        assigned_s=since_start(timings.assigned),
        read_start_s=since_start(timings.read_start),
        read_end_s=since_start(timings.read_end),
        prefill_start_s=since_start(timings.prefill_start),
        first_token_s=since_start(timings.first_token),
        end_s=since_start(timings.end),
        prompt_tokens=result.prompt_tokens,
        generated_tokens=len(result.choices),
        hit_tokens=result.hit_tokens,
        miss_tokens=result.prompt_tokens - result.hit_tokens,
        prefill_side_blocks=result.prefill_side_blocks,
        decode_side_blocks=result.decode_side_blocks,
        recomputed_blocks=result.recomputed_blocks,
        prefill_node=result.prefill_node,
        prefill_engine=result.prefill_engine,
        decode_node=result.decode_node,
        decode_engine=result.decode_engine,
        attempts=result.attempts,
    )


def _failed_request(played: PlayedTurn, started: float) -> RequestRecord:
    return RequestRecord(
        request_id=f"{played.session_id}/{played.turn}",
        session_id=played.session_id,
        turn=played.turn,
        arrival_s=played.arrival - started,
        assigned_s=None,
        read_start_s=None,
        read_end_s=None,
        prefill_start_s=None,
        first_token_s=None,
        end_s=None,
        prompt_tokens=played.prompt_tokens,
        generated_tokens=0,
        hit_tokens=0,
        miss_tokens=0,
        prefill_side_blocks=0,
        decode_side_blocks=0,
        recomputed_blocks=0,
        prefill_node="",
        prefill_engine=0,
        decode_node="",
        decode_engine=0,
        attempts=0,
        error=played.error,
    )


def _node(node_id: str, reply: StatsReply, spec: ClusterSpec, started: float) -> NodeRecord:
    role: Literal["prefill", "decode"] = "prefill" if node_id.startswith("prefill") else "decode"
    return NodeRecord(
        node_id=node_id,
        role=role,
        snic_read_bytes=reply.snic_read_bytes,
        snic_written_bytes=reply.snic_written_bytes,
        snic_busy_s=_busy_s(reply, spec),
        samples=tuple(
            SnicSample(sample.time - started, sample.seconds, sample.read_bytes, sample.written_bytes)
            for sample in reply.snic_samples
        ),
        cnic_bytes=tuple(reply.cnic_bytes),
        memory_read_bytes=reply.memory_read_bytes,
        dropped_blocks=reply.dropped_blocks,
        may_read=role == "prefill" or spec.mode.dual_path,
        snic_limit_bytes_per_s=None if spec.mode.free_transfers else spec.network.snic_bytes_per_s,
    )


def _busy_s(reply: StatsReply, spec: ClusterSpec) -> float:
    """Bytes over the rate, also where the network itself has it and no node knows."""
    rate = spec.network.snic_bytes_per_s
    return reply.snic_read_busy_s if spec.network.emulated or rate is None else reply.snic_read_bytes / rate
