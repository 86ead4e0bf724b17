"""How long attention takes: a line through a few timed passes (paper, scheduling: the compute quota).

Attention operations of (cached, new) tokens are a constant of the model times the (query, key) pairs that meet, so the
time is fitted to pairs and the constant is part of the slope.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from dualpath_jax.engine.base import EngineGroup, PrefillChunk

PROBE_TOKENS = 64
"""New tokens of a timed pass: an agent's turn."""

PROBE_REPEATS = 2
"""Times that each pass is run; the fastest counts."""


def _pairs(cached: int, new: int) -> float:
    """What `models.attention_cost.visible_pairs` says, without the import of JAX: fake engines do without it."""
    return new * cached + new * (new + 1) / 2


@final
@dataclass(frozen=True)
class AttentionSample:
    """One timed pass in which each engine had `new` tokens after `cached` ones."""

    cached: int
    new: int
    seconds: float


@final
@dataclass(frozen=True)
class AttentionTimeModel:
    """`seconds_per_pair` is attention's; `fixed_s` is what such a pass takes without any.

    `tokens_per_s` is what one engine gets through, cached tokens counted, on the longest pass that was timed: prompts
    of agents are cached for the most part, and the paper's `tok_e` and β count all their tokens. `new_tokens_per_s`
    is what it computes anew, in passes as wide as they get.
    """

    seconds_per_pair: float
    fixed_s: float
    tokens_per_s: float
    new_tokens_per_s: float

    @classmethod
    def fit(cls, samples: Sequence[AttentionSample], widest: AttentionSample) -> Self:
        """The line of least squares, with slope and intercept that are not negative.

        Raises ValueError unless two samples differ in their pairs.
        """
        pairs = np.array([_pairs(sample.cached, sample.new) for sample in samples])
        seconds = np.array([sample.seconds for sample in samples])
        if np.unique(pairs).size < 2:
            raise ValueError(f"{len(samples)} samples with pairs {np.unique(pairs)}: expected two that differ")
        slope, intercept = np.polyfit(pairs, seconds, 1)
        if slope <= 0 or intercept < 0:
            # Noise is larger than the difference between the passes: all of the time counts as attention.
            slope, intercept = float(pairs @ seconds / (pairs @ pairs)), 0.0
        longest = max(samples, key=lambda sample: sample.cached + sample.new)
        tokens_per_s = (longest.cached + longest.new) / longest.seconds
        return cls(float(slope), float(intercept), tokens_per_s, widest.new / widest.seconds)

    def seconds(self, cached: int, new: int) -> float:
        """Predicted attention time of `new` tokens after `cached` ones, in all layers."""
        return self.seconds_per_pair * _pairs(cached, new)


def measure(engine: EngineGroup, layer_groups: Sequence[tuple[int, int]]) -> AttentionTimeModel:
    """Time a few passes on all engines of a group at once, and fit.

    `layer_groups` are those that the node runs and has warmed up, so that nothing is compiled for this.
    """
    block, longest = engine.layout.block_tokens, engine.limits.prefix_tokens // 2
    new = min(PROBE_TOKENS, engine.limits.prefill_tokens)
    contexts = sorted({part * longest // 3 // block * block for part in range(4)})
    samples = [_time_pass(engine, layer_groups, cached, new) for cached in contexts]
    widest = _time_pass(engine, layer_groups, longest // 2 // block * block, engine.limits.prefill_tokens)
    return AttentionTimeModel.fit(samples, widest)


def _time_pass(engine: EngineGroup, layer_groups: Sequence[tuple[int, int]], cached: int, new: int) -> AttentionSample:
    tokens = np.arange(new) % engine.vocab_size
    pass_ = engine.plan_prefill([PrefillChunk("probe", e, tokens, cached) for e in range(engine.engines)])
    stage = engine.new_stage(max(last - first for first, last in layer_groups))
    fastest = float("inf")
    for _ in range(PROBE_REPEATS):
        start = time.perf_counter()
        engine.start_prefill(pass_)
        for first, last in layer_groups:
            engine.run_layers(first, last, stage)
        engine.finish_prefill()
        fastest = min(fastest, time.perf_counter() - start)
    return AttentionSample(cached, new, max(fastest, 1e-9))
