"""What a row of logits becomes."""

import jax
import numpy as np
import pytest

from dualpath_jax.engine.base import Sampling
from dualpath_jax.engine.flax_sampling import SamplingRows, choose, token_choice

LOGITS = np.random.default_rng(0).normal(size=(6, 11)).astype(np.float32)
run = jax.jit(choose)


def rows(*settings: tuple[Sampling, int, int | None]) -> SamplingRows:
    filled = SamplingRows.empty(len(settings))
    for place, (sampling, position, forced) in enumerate(settings):
        filled.fill((place,), sampling, position, forced)
    return filled


def test_greedy_and_the_two_most_likely() -> None:
    chosen = run(LOGITS, SamplingRows.empty(6))
    logprobs = np.log(np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(-1, keepdims=True))
    for row in range(6):
        choice, order = token_choice(chosen, (row,)), np.argsort(-LOGITS[row])
        assert choice.token == order[0]
        assert choice.top_tokens == tuple(order[:2])
        np.testing.assert_allclose(choice.top_logprobs, logprobs[row, order[:2]], atol=1e-6)
        assert choice.logprob == choice.top_logprobs[0]


def test_equal_logits_go_to_the_lower_token() -> None:
    chosen = run(np.zeros((6, 11), np.float32), SamplingRows.empty(6))
    assert token_choice(chosen, (3,)).top_tokens == (0, 1)


def test_a_draw_is_the_same_in_every_batch() -> None:
    hot = Sampling(temperature=2.0, seed=5)
    alone = [int(run(LOGITS[:1], rows((hot, position, None))).token[0]) for position in range(20)]
    other = Sampling(temperature=0.5, seed=77)
    for position, token in enumerate(alone):
        batch = rows((other, 3, None), (Sampling(), position, None), (hot, position, None), (hot, position + 1, None))
        assert int(run(LOGITS[[1, 2, 0, 0]], batch).token[2]) == token
    assert len(set(alone)) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    many = 4000
    filled = SamplingRows.empty(many)
    filled.temperature[:], filled.position[:] = temperature, np.arange(many)
    chosen = run(np.repeat(LOGITS[:1], many, axis=0), filled)
    wanted = np.exp(LOGITS[0] / temperature) / np.exp(LOGITS[0] / temperature).sum()
    got = np.bincount(np.asarray(chosen.token), minlength=11) / many
    np.testing.assert_allclose(got, wanted, atol=5 * np.sqrt(0.25 / many))
    # Log-probabilities are the model's own, whatever the temperature.
    own = LOGITS[0] - np.log(np.exp(LOGITS[0]).sum())
    np.testing.assert_allclose(chosen.logprob, own[np.asarray(chosen.token)], atol=1e-6)


def test_a_forced_token_wins() -> None:
    chosen = run(LOGITS, rows(*[(Sampling(temperature=t, seed=1), 0, 4) for t in (0.0, 1.0, 2.0, 0.0, 1.0, 2.0)]))
    assert np.asarray(chosen.token).tolist() == [4] * 6
    assert token_choice(chosen, (0,)).top_tokens[0] == LOGITS[0].argmax()


def test_a_seed_counts_in_its_low_32_bits() -> None:
    filled = rows((Sampling(1.0, 2**32 + 3), 0, None), (Sampling(1.0, -1), 0, None))
    assert filled.seed.tolist() == [3, 2**32 - 1]
