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
    reference_run,
    routing_noise,
)
from dualpath_jax.models.agreement import bfloat16_rounding_difference
from dualpath_jax.models.parameters import with_leaves
from dualpath_jax.models.router import routing_margins

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


def margins(spec, scores, bias):
    """Between groups and between experts, of one token."""
    scores = np.asarray([scores])
    found = routing_margins(jnp.asarray(np.log(scores / (1 - scores)), jnp.float32), jnp.asarray(bias), spec)
    return found[0].tolist()


def test_margin_between_experts_and_between_groups(tiny_spec):
    one = tiny_spec(n_routed_experts=4, n_group=1, topk_group=1)
    assert margins(one, [0.9, 0.5, 0.4, 0.1], np.zeros(4, np.float32)) == [np.inf, pytest.approx(0.1, abs=1e-6)]
    two = tiny_spec(n_routed_experts=6, n_group=2, topk_group=1)
    # Group 0 sums to 1.4, group 1 to 1.35; within group 0 the third is 0.2 behind.
    found = margins(two, [0.9, 0.5, 0.3, 0.7, 0.65, 0.1], np.zeros(6, np.float32))
    assert found == pytest.approx([0.05, 0.2], abs=1e-6)
    everything = tiny_spec(n_routed_experts=2, n_group=1, topk_group=1)
    assert margins(everything, [0.9, 0.5], np.zeros(2, np.float32)) == [np.inf, np.inf]


def test_margins_of_every_choice_are_reported_and_near_ties_named(tiny_spec):
    spec = tiny_spec()
    run = reference_run(Decoder.initialize(spec, seed=0), TOKENS)
    assert run.margins.shape == (TOKENS.size, spec.num_hidden_layers, 2)
    assert np.all(run.margins[:, 0] == np.inf)  # the first layer is dense
    # 2 layers, each with a density of about 10 near 0.
    assert 1e-6 < run.margins.min() < 1e-3
    assert np.median(run.margins[:, 1:]) > 1e-2
    assert len(run.near_ties(spec)) == np.sum(run.margins < routing_noise(spec))


def test_routing_noise_covers_what_two_runs_differ_by_and_is_no_wider_than_needed(tiny_spec):
    """Of margins between groups, which four scores make, in the last layer, where the noise is largest."""
    spec = tiny_spec(num_hidden_layers=6)
    model = Decoder.initialize(spec, seed=0)
    one, other = (reference_run(m, TOKENS).margins[:, 1:] for m in (model, with_noise(model)))
    moved = np.abs(one - other)
    # Where other experts are chosen there is another margin, after that too.
    moved = moved[moved < 1e-4]
    assert routing_noise(spec) / 20 < moved.max() < routing_noise(spec)
    assert routing_noise(tiny_spec(kv_dtype="bfloat16")) == 0
