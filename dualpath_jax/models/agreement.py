"""How far two correct runs may differ (docs/decisions/0002-agreement.md derives the numbers)."""

import math

from dualpath_configs.model import ModelSpec

FLOAT32_EPSILON = 1e-4
"""Of log-probabilities, with float32 KV: some ten times what reordered sums make."""

SCORE_NOISE = 1e-7
"""Of a biased router score between two runs, with float32 KV: root mean square per root of the layers up to there."""

SCORE_DEVIATION = 2.0
"""Of attention scores over a context (weights drawn from a seed have it by construction)."""

DEVIATIONS = 5.5
"""Of a normal variable, exceeded once in 25 million values."""


def agreement_epsilon(spec: ModelSpec) -> float:
    """The largest difference of a token's log-probability between a run and the oracle that count as agreeing.

    For bfloat16 KV it bounds what rounding does where both runs choose the same experts; with routed experts they will
    not always, so whoever needs agreement position by position keeps KV in float32.

    Raises:
        ValueError: `compute_dtype` is not float32, for which nothing is derived.
    """
    if spec.compute_dtype != "float32":
        raise ValueError(
            f"compute_dtype = {spec.compute_dtype!r}: agreement is derived for 'float32' only; compare in float32"
        )
    if spec.kv_dtype == "float32":
        return FLOAT32_EPSILON
    gain = math.sqrt(2) * (1 + SCORE_DEVIATION) * math.sqrt(spec.num_hidden_layers)
    return DEVIATIONS * gain * bfloat16_rounding_difference()


def routing_noise(spec: ModelSpec) -> float:
    """The margin below which two correct runs may choose differently (`router.routing_margins`).

    The margin between two groups is made of four scores, a group counting two; that between two experts of two. For
    bfloat16 KV, 0: so many choices tip there that none can be named.
    """
    if spec.kv_dtype != "float32":
        return 0.0
    return DEVIATIONS * math.sqrt(4) * SCORE_NOISE * math.sqrt(spec.num_hidden_layers)


def bfloat16_rounding_difference() -> float:
    """Root mean square, relative to the value, of the difference between two independent roundings to bfloat16.

    A value in [1, 2) is rounded to multiples of 2^-7, so by a deviation of 2^-7 / sqrt(12); two such errors make
    2^-7 / sqrt(6); the mean of 1 / value^2 over values that are uniform in their logarithm is 3 / (8 ln 2).
    """
    return 2.0**-7 / math.sqrt(6) * math.sqrt(3 / (8 * math.log(2)))
