"""Fixes read plans: from what the scheduler knows of a request and of its two nodes to who loads which blocks."""

import math
from collections.abc import Sequence
from typing import final

from dualpath_configs import ClusterSpec
from dualpath_scheduler import policy
from dualpath_scheduler.policy import ComputeState, ReadPlan, ReadSnapshot
from dualpath_scheduler.service.node import Node


@final
class Planner:
    """The policies of one cluster's read plans."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._block_tokens = spec.block_tokens
        self._read_plan = policy.read_plan_for(spec.mode, spec.scheduling)
        self._load_or_recompute = spec.scheduling.load_or_recompute
        # Of what comes from the decode side, prefill waits for the first layers; the others move while it computes.
        layers = spec.model.num_hidden_layers
        self._waited_for = min(1.0, spec.scheduling.layers_per_group / layers) if spec.mode.layerwise else 1.0
        self._plans = 0

    def plan(self, hit: Sequence[bytes], prefill: Node, decode: Node, *, engine: int, prompt_tokens: int) -> ReadPlan:
        """Who loads which of the hit blocks, whose keys these are; those behind the plan's end are computed.

        The request of `prompt_tokens` has been promised to prefill engine `engine` already.
        """
        here, there = prefill.snapshot(self._block_tokens), decode.snapshot(self._block_tokens)
        snapshot = ReadSnapshot(
            hit_blocks=len(hit),
            prefill_read_q_tokens=here.read_q_tokens,
            decode_read_q_tokens=there.read_q_tokens,
            ordinal=self._plans,
            prefill_resident_blocks=prefill.residents.leading(hit),
            decode_resident_blocks=decode.residents.leading(hit[::-1]),
            prefill_read_tokens_per_s=prefill.read_tokens_per_s,
            decode_read_tokens_per_s=decode.read_tokens_per_s,
            hop_tokens_per_s=min(prefill.cnic_tokens_per_s, decode.cnic_tokens_per_s) / self._waited_for,
            block_tokens=self._block_tokens,
        )
        self._plans += 1
        if self._load_or_recompute:
            others = max(0, here.engines[engine].tok - prompt_tokens)
            compute = ComputeState(
                queue_s=others / (prefill.info.tokens_per_s or math.inf),
                new_tokens_per_s=prefill.info.new_tokens_per_s or math.inf,
            )
            snapshot = policy.shortened(snapshot, policy.blocks_to_load(snapshot, self._read_plan, compute))
        return self._read_plan(snapshot)
