"""When each side would be done with its share of a read plan."""

import math

from dualpath_scheduler.policy.snapshot import ReadSnapshot


def prefill_side_s(snapshot: ReadSnapshot, blocks: int) -> float:
    """Seconds until the prefill side has the first `blocks` hit blocks: after what waits for its card already."""
    absent = blocks - snapshot.prefill_resident_blocks
    rate, _ = _storage_rates(snapshot)
    return _storage_s(absent * snapshot.block_tokens, snapshot.prefill_read_q_tokens, rate)


def decode_side_s(snapshot: ReadSnapshot, blocks: int) -> float:
    """Seconds until the last `blocks` hit blocks are with prefill: read by the decode side, then over the network."""
    absent = blocks - snapshot.decode_resident_blocks
    _, rate = _storage_rates(snapshot)
    read_s = _storage_s(absent * snapshot.block_tokens, snapshot.decode_read_q_tokens, rate)
    return read_s + blocks * snapshot.block_tokens / snapshot.hop_tokens_per_s


def _storage_s(tokens: int, queued_tokens: int, tokens_per_s: float) -> float:
    """What lies in memory waits for no queue."""
    return (queued_tokens + tokens) / tokens_per_s if tokens > 0 else 0.0


def _storage_rates(snapshot: ReadSnapshot) -> tuple[float, float]:
    """Two cards of which no limit is known count as equal, so that their queues still say something."""
    rates = snapshot.prefill_read_tokens_per_s, snapshot.decode_read_tokens_per_s
    return (1.0, 1.0) if rates == (math.inf, math.inf) else rates
