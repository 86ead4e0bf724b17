"""The numbers of docs/decisions/0002-agreement.md, measured on small models."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dualpath_jax.models import (
    Decoder,
    agreement_epsilon,
    flatten,
    reference_logprobs,
    reference_routing_margins,
)
from dualpath_jax.models.agreement import bfloat16_rounding_difference
from dualpath_jax.models.parameters import with_leaves
from dualpath_jax.models.router import routing_margin

TOKENS = np.random.default_rng(1).integers(0, 96, 512)


def with_noise(model):
    """The same model with each weight off by about one float32 rounding: what reordered sums do, and more."""
    noise = np.random.default_rng(0)
    leaves = [np.asarray(leaf) for leaf in flatten(model)[1]]
    return with_leaves(
        model, [jnp.asarray(a * (1 + 2.0**-24 * noise.standard_normal(a.shape)), a.dtype) for a in leaves]
    )


def difference(one, other):
    return np.abs(reference_logprobs(one, TOKENS) - reference_logprobs(other, TOKENS)).max()


def test_float32_noise_stays_well_below_epsilon(tiny_spec):
    spec = tiny_spec()
    model = Decoder.initialize(spec, seed=0)
    assert agreement_epsilon(spec) == 1e-4
    assert 0 < difference(model, with_noise(model)) < agreement_epsilon(spec) / 5


@pytest.mark.parametrize("layers", [4, 8])
def test_bfloat16_bound_holds_without_routing_and_is_no_more_than_needed(tiny_spec, layers):
    """Full rounding stays within it; noise that tips a few roundings, far within; and it is not 30 times too wide."""
    dense = {"num_hidden_layers": layers, "first_k_dense_replace": layers}
    exact = Decoder.initialize(tiny_spec(**dense), seed=0)
    spec = tiny_spec(**dense, kv_dtype="bfloat16")
    rounded = Decoder.initialize(spec, seed=0)
    epsilon = agreement_epsilon(spec)
    assert epsilon / 30 < difference(exact, rounded) < epsilon
    tipped = difference(rounded, with_noise(rounded))
    assert 1e-4 < tipped < epsilon / 2


def test_rounding_difference_is_that_of_two_roundings():
    """Of a value and of one within a spacing of it."""
    draw = np.random.default_rng(0)
    values = 2.0 ** draw.uniform(0, 8, 200_000)
    spacing = 2.0 ** (np.floor(np.log2(values)) - 7)
    others = values + draw.uniform(-1, 1, values.size) * spacing * 8
    errors = [(v.astype(ml_dtypes.bfloat16).astype(np.float64) - v) / values for v in (values, others)]
    measured = np.sqrt(np.mean((errors[0] - errors[1]) ** 2))
    assert measured == pytest.approx(bfloat16_rounding_difference(), rel=0.02)


def test_epsilon_in_other_arithmetic_is_refused(tiny_spec):
    with pytest.raises(ValueError, match=r"compute_dtype = 'bfloat16': agreement is derived for 'float32' only"):
        agreement_epsilon(tiny_spec(compute_dtype="bfloat16"))


def margin(spec, scores, bias):
    scores = np.asarray([scores])
    return float(routing_margin(jnp.asarray(np.log(scores / (1 - scores)), jnp.float32), jnp.asarray(bias), spec)[0])


def test_margin_between_experts_and_between_groups(tiny_spec):
    one = tiny_spec(n_routed_experts=4, n_group=1, topk_group=1)
    assert margin(one, [0.9, 0.5, 0.4, 0.1], np.zeros(4, np.float32)) == pytest.approx(0.1, abs=1e-6)
    two = tiny_spec(n_routed_experts=6, n_group=2, topk_group=1)
    # Group 0 sums to 1.4, group 1 to 1.35; within group 0 the third is 0.2 behind.
    assert margin(two, [0.9, 0.5, 0.3, 0.7, 0.65, 0.1], np.zeros(6, np.float32)) == pytest.approx(0.05, abs=1e-6)
    everything = tiny_spec(n_routed_experts=2, n_group=1, topk_group=1)
    assert margin(everything, [0.9, 0.5], np.zeros(2, np.float32)) == np.inf


def test_a_tied_router_is_reported_at_its_token(tiny_spec):
    spec = tiny_spec()
    margins = reference_routing_margins(Decoder.initialize(spec, seed=0), TOKENS)
    assert margins.shape == TOKENS.shape
    # About 2 layers, each with a density of 10 near 0.
    assert 1e-6 < margins.min() < 1e-3
    assert np.median(margins) > 1e-2
    dense = Decoder.initialize(tiny_spec(first_k_dense_replace=3), seed=0)
    assert np.all(reference_routing_margins(dense, TOKENS) == np.inf)
