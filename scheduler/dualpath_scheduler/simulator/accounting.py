"""What must come out even at the end of a run: requests, tokens, and the bytes of every hop and every card."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from dualpath_scheduler.simulator.simulation import Simulation

Balance = tuple[str, int, int]
"""What is counted, its count, and what it should be."""


@final
class ConservationError(Exception):
    """A run lost or made requests, tokens or bytes: a fault of the simulator."""


def check_conservation(run: "Simulation") -> None:
    """Raises ConservationError, with everything that does not come out even, for a run that is over."""
    wrong = [
        f"{what} is {found}, expected {expected}"
        for what, found, expected in (*_requests(run), *_tokens(run), *_hops(run), *_cards(run), *_nothing_held(run))
        if found != expected
    ]
    if wrong:
        raise ConservationError("; ".join(wrong))


def _requests(run: "Simulation") -> Iterator[Balance]:
    times, count = run.log.times, run.workload.requests
    yield "requests that arrived", int(np.isfinite(times["arrival_s"]).sum()), count
    yield "requests that ended", int(np.isfinite(times["end_s"]).sum()), count
    for order in _orders(run):
        for earlier, later in itertools.pairwise(order):
            yield f"requests with {earlier} before {later}", int((times[earlier] <= times[later]).sum()), count
    starts, ends = times["arrival_s"][1:], times["end_s"][:-1]
    inside = np.ones(count - 1, bool)
    inside[run.workload.first[1:-1] - 1] = False
    yield "turns that began before the one before ended", int((starts < ends)[inside].sum()), 0


def _orders(run: "Simulation") -> list[tuple[str, ...]]:
    """Times that follow each other; prefill begins before the last read has ended where blocks are read by layers."""
    begun = ("arrival_s", "assigned_s")
    if run.spec.scheduling.read_order == "blocks":
        return [(*begun, "read_end_s", "prefill_start_s", "first_token_s", "end_s")]
    return [(*begun, "read_end_s", "first_token_s", "end_s"), ("assigned_s", "prefill_start_s", "first_token_s")]


def _tokens(run: "Simulation") -> Iterator[Balance]:
    prompts, hits = run.workload.prompt_tokens(), run.log.counts["hit_tokens"]
    most = run.workload.hit_tokens(run.spec.block_tokens)
    yield "requests with no more hits than tokens before them", int((hits <= most).sum()), run.workload.requests
    computed = sum(unit.computed_tokens for node in run.prefill for unit in node.prefill_units)
    yield "tokens prefilled", computed, int((prompts - hits).sum())
    decoded = sum(unit.decoded_tokens for node in run.decode for unit in node.decode_units)
    yield "tokens decoded", decoded, int((run.workload.generate_tokens - 1).sum())


def _hops(run: "Simulation") -> Iterator[Balance]:
    """The bytes of each hop, from the workload and the read plans alone."""
    hops, workload, block_tokens = run.traffic.bytes, run.workload, run.spec.block_tokens
    token_bytes = 0 if run.spec.mode.free_transfers else run.spec.model.kv_bytes_per_token
    prompts, generated = workload.prompt_tokens(), workload.generate_tokens
    hits = run.log.counts["hit_tokens"].astype(np.int64)
    prefill_side, prefill_tier, decode_tier = (
        int(run.log.counts[name].sum()) for name in ("prefill_side_tokens", "prefill_tier_tokens", "decode_tier_tokens")
    )
    hit, prompt = int(hits.sum()), int(prompts.sum())
    reloaded = sum(unit.reloaded_tokens for node in run.prefill for unit in node.prefill_units)
    whole = (prompts + generated) // block_tokens * block_tokens
    yield "bytes of tier_to_prefill", hops["tier_to_prefill"], prefill_tier * token_bytes
    yield "bytes of tier_to_decode", hops["tier_to_decode"], decode_tier * token_bytes
    yield "bytes of storage_to_prefill", hops["storage_to_prefill"], (prefill_side - prefill_tier) * token_bytes
    yield "bytes of storage_to_decode", hops["storage_to_decode"], (hit - prefill_side - decode_tier) * token_bytes
    yield "bytes of loads", hops["prefill_load"] + hops["decode_load"], (hit + reloaded) * token_bytes
    yield "bytes of prefill_to_decode", hops["prefill_to_decode"], (prompt - hit + prefill_side) * token_bytes
    yield "bytes of insert", hops["insert"], prompt * token_bytes
    yield "bytes of export", hops["export"], int(generated.sum()) * token_bytes
    yield "bytes of persist", hops["persist"], int((whole - hits).sum()) * token_bytes


def _cards(run: "Simulation") -> Iterator[Balance]:
    """A hop between devices leaves through one card and comes in through one; storage passes storage cards."""
    hops, nodes = run.traffic.bytes, [*run.prefill, *run.decode]
    moved = sum(hops[name] for name in ("prefill_load", "decode_load", "prefill_to_decode", "insert", "export"))
    read = hops["storage_to_prefill"] + hops["storage_to_decode"]
    copied = hops["tier_to_prefill"] + hops["tier_to_decode"]
    through_memories = moved + hops["persist"] + 2 * copied
    yield "bytes out of CNICs", sum(link.total_bytes for node in nodes for link in node.cnic_read), moved
    yield "bytes into CNICs", sum(link.total_bytes for node in nodes for link in node.cnic_write), moved
    yield "bytes through memories", sum(node.memory.total_bytes for node in nodes), through_memories
    yield "bytes out of tiers", sum(node.tier_read_bytes for node in nodes), copied
    yield "bytes read by SNICs", sum(node.snic.total_bytes for node in nodes), read
    yield "bytes written by SNICs", sum(node.snic_write.total_bytes for node in nodes), hops["persist"]


def _nothing_held(run: "Simulation") -> Iterator[Balance]:
    for node in (*run.prefill, *run.decode):
        yield f"engines of {node.node_id} at rest", int(node.is_idle), 1
        yield f"reads that wait on {node.node_id}", node.read_waiting_tokens, 0
        yield f"free buffer of {node.node_id}", node.buffer.free, node.buffer.capacity
        yield f"tier of {node.node_id} within its size", int(node.tier.blocks <= run.spec.dram_tier_blocks), 1
