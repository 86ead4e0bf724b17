"""The reference with some choices of routers made the other way."""

import numpy as np
import pytest

from dualpath_jax.models import Decision, Decoder, reference_logits, reference_run

TOKENS = np.random.default_rng(3).integers(0, 96, 100)


@pytest.fixture(scope="module")
def model(tiny_spec):
    """Layers 1 to 3 have routers; 2 of 4 groups and 2 of their 4 experts are chosen."""
    return Decoder.initialize(tiny_spec(num_hidden_layers=4), seed=0)


@pytest.fixture(scope="module")
def plain(model):
    return reference_run(model, TOKENS)


def test_untipped_it_is_the_reference(model, plain):
    assert np.array_equal(plain.logits, reference_logits(model, TOKENS))
    assert plain.logits.shape == (100, 96)
    assert plain.margins.shape == (100, 4, 2)


@pytest.mark.parametrize("place", ["groups", "experts"])
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_tip_changes_its_token_and_what_attends_to_it(model, plain, place, layer):
    at = 40
    tipped = reference_run(model, TOKENS, [Decision(at, layer, place)])
    moved = np.abs(tipped.logits - plain.logits).max(axis=-1)
    assert np.all(moved[:at] == 0)
    assert moved[at] > 1e-3
    # The last layer's KV was made before its router chose.
    assert (moved[at + 1 :].max() > 1e-4) == (layer < 3)
    # The margins before the tip and its own among groups stand; what follows has margins of its own.
    assert np.array_equal(tipped.margins[:, :layer], plain.margins[:, :layer])
    assert tipped.margins[at, layer, 0] == plain.margins[at, layer, 0]
    assert np.any(tipped.margins[at, layer + 1 :] != plain.margins[at, layer + 1 :]) == (layer < 3)


def test_tips_add_up_and_their_order_does_not_matter(model):
    tips = [Decision(30, 1, "experts"), Decision(50, 2, "groups")]
    both, reversed_ = reference_run(model, TOKENS, tips), reference_run(model, TOKENS, tips[::-1])
    first = reference_run(model, TOKENS, tips[:1])
    assert np.array_equal(both.logits, reversed_.logits)
    assert np.array_equal(both.logits[:50], first.logits[:50])
    assert not np.array_equal(both.logits[50:], first.logits[50:])


def test_padding_changes_no_margin(model, plain):
    shorter = reference_run(model, TOKENS[:60])
    np.testing.assert_allclose(shorter.margins[:, 1:], plain.margins[:60, 1:], atol=1e-5)
