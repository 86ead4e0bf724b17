"""When each side would be done with its share of a read plan."""

from dualpath_scheduler.policy.snapshot import ReadPlan, ReadSnapshot


def prefill_side_s(snapshot: ReadSnapshot, blocks: int) -> float:
    """Seconds until the prefill side has the first `blocks` hit blocks: after what waits for its card already."""
    absent = blocks - snapshot.prefill_resident_blocks
    return _storage_s(
        absent * snapshot.block_tokens, snapshot.prefill_read_q_tokens, snapshot.prefill_read_tokens_per_s
    )


def decode_side_s(snapshot: ReadSnapshot, blocks: int) -> float:
    """Seconds until the last `blocks` hit blocks are with prefill: read by the decode side, then over the network."""
    absent = blocks - snapshot.decode_resident_blocks
    read_s = _storage_s(
        absent * snapshot.block_tokens, snapshot.decode_read_q_tokens, snapshot.decode_read_tokens_per_s
    )
    return read_s + blocks * snapshot.block_tokens / snapshot.hop_tokens_per_s


def reading_s(snapshot: ReadSnapshot, plan: ReadPlan) -> float:
    """Seconds until prefill has the hit blocks from both sides."""
    return max(prefill_side_s(snapshot, plan.prefill_side_blocks), decode_side_s(snapshot, plan.decode_side_blocks))


def _storage_s(tokens: int, queued_tokens: int, tokens_per_s: float) -> float:
    """What lies in memory waits for no queue."""
    return (queued_tokens + tokens) / tokens_per_s if tokens > 0 else 0.0
