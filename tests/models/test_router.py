"""The router's corner cases, each worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from dualpath_jax.models.router import route


def logits_for(scores):
    """Logits whose sigmoids are these scores, one token."""
    scores = np.asarray(scores, np.float64)
    return jnp.asarray(np.log(scores / (1 - scores)), jnp.float32)[None]


def routed(spec, scores, bias):
    weights, chosen = route(logits_for(scores), jnp.asarray(bias, jnp.float32), spec)
    return {int(e): pytest.approx(float(w), abs=1e-6) for e, w in zip(chosen[0], weights[0], strict=True)}


def spec_with(tiny_spec, experts, *, groups=1, kept=1, chosen=2, **changed):
    return tiny_spec(n_routed_experts=experts, n_group=groups, topk_group=kept, num_experts_per_tok=chosen, **changed)


def test_bias_selects_and_does_not_weigh(tiny_spec):
    spec = spec_with(tiny_spec, 4)
    assert routed(spec, [0.9, 0.6, 0.3, 0.2], [0, 0, 0, 1]) == {3: 0.2 / 1.1, 0: 0.9 / 1.1}


def test_weights_are_scaled_after_normalisation(tiny_spec):
    spec = spec_with(tiny_spec, 4, routed_scaling_factor=2.5)
    assert routed(spec, [0.5, 0.25, 0.1, 0.1], [0] * 4) == {0: 2.5 * 2 / 3, 1: 2.5 / 3}
    plain = spec_with(tiny_spec, 4, routed_scaling_factor=2.0, norm_topk_prob=False)
    assert routed(plain, [0.5, 0.25, 0.1, 0.1], [0] * 4) == {0: 1.0, 1: 0.5}


def test_a_group_counts_its_two_best(tiny_spec):
    """Group 0 has the best expert, group 1 the best two."""
    spec = spec_with(tiny_spec, 6, groups=2)
    assert set(routed(spec, [0.9, 0.1, 0.1, 0.6, 0.6, 0.1], [0] * 6)) == {3, 4}


def test_masked_groups_lose_to_negative_scores(tiny_spec):
    """In the kept group one biased score is below 0; an expert of a masked group must not take its place."""
    spec = spec_with(tiny_spec, 4, groups=2)
    assert set(routed(spec, [0.9, 0.1, 0.4, 0.4], [0, -0.5, -0.5, -0.5])) == {0, 1}
    assert routed(spec, [0.9, 0.1, 0.4, 0.4], [0, -0.5, -0.5, -0.5]) == {0: 0.9, 1: 0.1}


def test_equal_scores_prefer_the_lower_index(tiny_spec):
    spec = spec_with(tiny_spec, 8, groups=4, kept=2)
    assert set(routed(spec, [0.5] * 8, [0] * 8)) == {0, 1}


def test_vanishing_scores_do_not_divide_by_zero(tiny_spec):
    weights, _ = route(jnp.full((1, 8), -200.0), jnp.zeros(8), spec_with(tiny_spec, 8))
    assert np.array_equal(weights, np.zeros((1, 2)))


def test_scores_are_float32_whatever_the_logits(tiny_spec):
    spec = spec_with(tiny_spec, 8)
    weights, chosen = route(jnp.zeros((3, 8), jnp.bfloat16), jnp.zeros(8), spec)
    assert weights.dtype == jnp.float32
    assert chosen.dtype == jnp.int32


def tipped(spec, scores, bias, *, groups=False, experts=False):
    weights, chosen = route(logits_for(scores), jnp.asarray(bias, jnp.float32), spec, jnp.asarray([[groups, experts]]))
    return {int(e): pytest.approx(float(w), abs=1e-6) for e, w in zip(chosen[0], weights[0], strict=True)}


def test_a_tipped_choice_takes_the_next_expert_in_place_of_the_last(tiny_spec):
    """Weights are those of the scores; the bias still only selects."""
    spec = spec_with(tiny_spec, 4)
    scores, bias = [0.9, 0.6, 0.3, 0.2], [0, 0, 0, 0.2]
    assert tipped(spec, scores, bias) == routed(spec, scores, bias) == {0: 0.9 / 1.5, 1: 0.6 / 1.5}
    assert tipped(spec, scores, bias, experts=True) == {0: 0.9 / 1.1, 3: 0.2 / 1.1}
    assert tipped(spec, scores, bias, groups=True) == routed(spec, scores, bias)  # there is one group


def test_a_tipped_group_takes_the_place_of_the_last_that_is_kept(tiny_spec):
    spec = spec_with(tiny_spec, 6, groups=3, kept=2)
    scores = [0.9, 0.8, 0.5, 0.4, 0.6, 0.1]
    assert set(tipped(spec, scores, [0] * 6)) == {0, 1}
    one = spec_with(tiny_spec, 6, groups=3, kept=1)
    assert set(tipped(one, scores, [0] * 6, groups=True)) == {2, 3}
    # Both at once: the first two groups lose the middle one, and of the experts that are left the second gives way.
    assert set(tipped(spec, scores, [0] * 6, groups=True, experts=True)) == {0, 4}
    assert set(tipped(spec, scores, [0] * 6, experts=True)) == {0, 2}


def test_where_everything_is_chosen_nothing_can_be_tipped(tiny_spec):
    spec = spec_with(tiny_spec, 2)
    assert tipped(spec, [0.9, 0.6], [0, 0], groups=True, experts=True) == {0: 0.6, 1: 0.4}
