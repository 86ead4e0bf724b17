"""The attention-time model: fitted on times that are known, and measured on a real group."""

import numpy as np
import pytest

from dualpath_jax.engine.attention_time import AttentionSample, AttentionTimeModel, measure
from dualpath_jax.models.attention_cost import visible_pairs
from tests.engine.flax_testbed import ALL, engine_group


def sample(cached: int, new: int, *, fixed: float = 0.01, slope: float = 2e-7, noise: float = 0.0) -> AttentionSample:
    return AttentionSample(cached, new, fixed + slope * visible_pairs(cached, new) + noise)


def test_a_line_is_found_again() -> None:
    model = AttentionTimeModel.fit(
        [sample(cached, 64) for cached in (0, 1000, 2000, 4000)], AttentionSample(0, 512, 0.25)
    )
    assert model.seconds_per_pair == pytest.approx(2e-7)
    assert model.fixed_s == pytest.approx(0.01)
    assert model.tokens_per_s == pytest.approx(4064 / sample(4000, 64).seconds)
    assert model.new_tokens_per_s == 2048
    assert model.seconds(3000, 10) == pytest.approx(2e-7 * 30055)


def test_noise_moves_it_little() -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, 20)
    model = AttentionTimeModel.fit([sample(200 * i, 64, noise=float(n)) for i, n in enumerate(noise)], sample(0, 64))
    assert model.seconds_per_pair == pytest.approx(2e-7, rel=0.1)


def test_times_that_fall_still_give_a_price() -> None:
    model = AttentionTimeModel.fit([AttentionSample(0, 64, 0.02), AttentionSample(4000, 64, 0.01)], sample(0, 64))
    assert model.seconds_per_pair > 0
    assert model.fixed_s == 0
    assert model.seconds(4000, 64) == pytest.approx(0.01, rel=0.1)


def test_one_point_is_no_line() -> None:
    with pytest.raises(ValueError, match="expected two that differ"):
        AttentionTimeModel.fit([sample(10, 5), sample(10, 5)], sample(10, 5))


def test_measured_on_a_group() -> None:
    model = measure(engine_group(), ALL)
    assert model.seconds_per_pair > 0
    assert 0 < model.seconds(64, 32) < 10
    assert model.tokens_per_s > 1
    assert model.new_tokens_per_s > 1
