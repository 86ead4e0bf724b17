"""The next token of each row of logits, and what is reported of it."""

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_jax.engine.base import Sampling, TokenChoice
from dualpath_jax.models.attention import HostOrDevice

FREE = -1
"""Forced token of a row whose token is chosen."""


@final
class SamplingRows(NamedTuple):
    """How each row chooses; `[N]` each."""

    temperature: HostOrDevice  # float32; 0 is greedy
    seed: HostOrDevice  # uint32, the low 32 bits
    position: HostOrDevice  # int32, of the token that is chosen
    forced: HostOrDevice  # int32; FREE where the row chooses

    @classmethod
    def empty(cls, *shape: int) -> "SamplingRows":
        """Greedy rows that a host fills in."""
        zeros = np.zeros(shape, np.int32)
        return cls(zeros.astype(np.float32), zeros.astype(np.uint32), zeros, np.full(shape, FREE, np.int32))

    def fill(self, place: tuple[int, ...], sampling: Sampling, position: int, forced: int | None) -> None:
        """Write one row on the host."""
        for field, value in zip(
            self,
            (sampling.temperature, sampling.seed & 0xFFFF_FFFF, position, FREE if forced is None else forced),
            strict=True,
        ):
            field[place] = value


@final
class ChosenRows(NamedTuple):
    """The fields of `TokenChoice`, `[N]` or `[N, 2]` each."""

    token: jax.Array
    logprob: jax.Array
    top_tokens: jax.Array
    top_logprobs: jax.Array


def choose(logits_NV: jax.Array, rows: SamplingRows) -> ChosenRows:
    """Greedy, drawn at a temperature, or given. Log-probabilities are the model's own, at temperature 1, in float32.

    A draw uses the key `fold_in(PRNGKey(seed), position)`, so it is the same in every batch.
    """
    logprobs_NV = jax.nn.log_softmax(logits_NV.astype(jnp.float32), axis=-1)
    vocabulary = jnp.arange(logprobs_NV.shape[1])
    first_N = jnp.argmax(logprobs_NV, axis=-1)
    others_NV = jnp.where(vocabulary[None, :] == first_N[:, None], -jnp.inf, logprobs_NV)
    top_N2 = jnp.stack([first_N, jnp.argmax(others_NV, axis=-1)], axis=-1).astype(jnp.int32)
    drawn_N = jax.vmap(_draw)(logprobs_NV, rows.temperature, rows.seed, rows.position)
    own_N = jnp.where(rows.temperature > 0, drawn_N.astype(jnp.int32), top_N2[:, 0])
    token_N = jnp.where(rows.forced >= 0, rows.forced, own_N)
    picked = jnp.take_along_axis(logprobs_NV, jnp.concatenate([token_N[:, None], top_N2], axis=1), axis=1)
    return ChosenRows(token_N, picked[:, 0], top_N2, picked[:, 1:])


def _draw(logprobs_V: jax.Array, temperature: jax.Array, seed: jax.Array, position: jax.Array) -> jax.Array:
    key = jax.random.fold_in(jax.random.PRNGKey(seed), position)
    return jax.random.categorical(key, logprobs_V / jnp.where(temperature > 0, temperature, 1.0))


def token_choice(rows: ChosenRows, place: tuple[int, ...]) -> TokenChoice:
    """One row, on the host."""
    first, second = (int(token) for token in np.asarray(rows.top_tokens)[place])
    best, next_best = (float(logprob) for logprob in np.asarray(rows.top_logprobs)[place])
    token, logprob = int(np.asarray(rows.token)[place]), float(np.asarray(rows.logprob)[place])
    return TokenChoice(token, logprob, (first, second), (best, next_best))
