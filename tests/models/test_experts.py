"""The forms of the mixture of experts agree: dense and grouped, sharded and whole."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dualpath_jax.models import Decoder, flatten, partition_specs
from dualpath_jax.models.experts import experts_dense, experts_grouped, prefers_dense


def random_experts(tokens, experts, chosen):
    draw = np.random.default_rng(5)
    sizes = (experts, 24, 16), (experts, 24, 16), (experts, 16, 24)
    arrays = tuple(jnp.asarray(draw.standard_normal(size) / 4, jnp.float32) for size in sizes)
    picks = np.argsort(draw.random((tokens, experts)), axis=1)[:, :chosen].astype(np.int32)
    x, weights = draw.standard_normal((tokens, 24)), draw.random((tokens, chosen))
    return jnp.asarray(x, jnp.float32), jnp.asarray(weights, jnp.float32), jnp.asarray(picks), arrays


def by_hand(x, weights, picks, arrays):
    gate, up, down = (np.asarray(array, np.float64) for array in arrays)
    out = np.zeros(x.shape)
    for token, row in enumerate(np.asarray(x, np.float64)):
        for weight, expert in zip(np.asarray(weights)[token], np.asarray(picks)[token], strict=True):
            if 0 <= expert < len(gate):
                g = row @ gate[expert]
                out[token] += weight * ((g / (1 + np.exp(-g)) * (row @ up[expert])) @ down[expert])
    return out


@pytest.mark.parametrize("form", [experts_dense, experts_grouped])
@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(1, 8, 2), (33, 8, 2), (20, 4, 4), (16, 16, 1)])
def test_forms_equal_the_definition(form, tokens, experts, chosen):
    case = random_experts(tokens, experts, chosen)
    np.testing.assert_allclose(jax.jit(form)(*case), by_hand(*case), atol=2e-6)


@pytest.mark.parametrize("form", [experts_dense, experts_grouped])
@pytest.mark.parametrize("first", [-6, 3])
def test_experts_of_other_shards_add_nothing(form, first):
    x, weights, picks, arrays = random_experts(24, 8, 3)
    case = x, weights, picks + first, arrays
    np.testing.assert_allclose(jax.jit(form)(*case), by_hand(*case), atol=2e-6)


@pytest.mark.parametrize("form", [experts_dense, experts_grouped])
def test_padding_changes_no_other_token(form):
    """Not even where it is not a number."""
    x, weights, picks, arrays = random_experts(24, 8, 2)
    form = jax.jit(form)
    spoiled = form(x.at[20:].set(jnp.nan), weights, picks, arrays)
    assert np.array_equal(spoiled[:20], form(x, weights, picks, arrays)[:20])


def test_rule_counts_local_experts():
    assert prefers_dense(chosen=2, experts=8)
    assert not prefers_dense(chosen=8, experts=256)


@pytest.mark.parametrize(
    ("shards", "shared", "experts"), [(2, 1, 8), (4, 2, 8), (8, 0, 8), (2, 0, 32), (4, 1, 32), (8, 2, 32)]
)
def test_sharded_equals_whole(tiny_spec, shards, shared, experts):
    """With 32 experts, two shards run the grouped form, where one token's experts lie on several shards."""
    spec = tiny_spec(n_shared_experts=shared, n_routed_experts=experts)
    stack = Decoder.initialize(spec, seed=1).moe
    structure, leaves = flatten(stack)
    specs = [P(*s[1:]) for s in partition_specs(stack)]
    layer = [leaf[1] for leaf in leaves]
    x = jax.random.normal(jax.random.key(0), (8 * shards, spec.hidden_size))
    mesh = Mesh(jax.devices()[:shards], "engine")

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(specs, P("engine")), out_specs=P("engine"))
    def sharded(layer, x):
        return structure.build(layer).ffn(x, "engine")

    whole = jax.jit(lambda layer, x: structure.build(layer).ffn(x, None))(layer, x)
    assert float(jnp.std(whole)) > 0.1
    np.testing.assert_allclose(sharded(layer, x), whole, atol=2e-6)
    text = sharded.lower(layer, x).as_text(debug_info=True)
    assert "moe_all_gather" in text
    assert "moe_reduce_scatter" in text
