"""The two exact forms of latent attention agree, for many shapes; rotation and YaRN by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualpath_configs import YarnSpec
from dualpath_jax.models import Decoder, flatten
from dualpath_jax.models.rope import inverse_frequencies, rotate, rotation_scale, softmax_scale

YARN = YarnSpec(factor=8.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0)


def one_layer(spec):
    structure, leaves = flatten(Decoder.initialize(spec, seed=3).moe)
    return structure, tuple(leaf[0] for leaf in leaves)


def causal(scores_HTS):
    tokens = scores_HTS.shape[-1]
    visible = jnp.tril(jnp.ones((tokens, tokens), bool))[None]
    return jax.nn.softmax(jnp.where(visible, scores_HTS, -jnp.inf), axis=-1)


@pytest.mark.parametrize(
    ("heads", "kv_rank", "q_rank", "shared"),
    [(1, 16, 12, 1), (2, 8, None, 2), (3, 48, 24, 0), (4, 8, 8, 1), (8, 16, None, 0), (8, 48, 12, 2)],
)
def test_absorbed_equals_expanded(tiny_spec, heads, kv_rank, q_rank, shared):
    """Within 1e-5, one whole layer on outputs of order 1."""
    spec = tiny_spec(
        num_attention_heads=heads,
        kv_lora_rank=kv_rank,
        q_lora_rank=q_rank,
        n_shared_experts=shared,
        rope_scaling=YARN if shared else None,
    )
    x = jax.random.normal(jax.random.key(0), (40, spec.hidden_size))
    absorbed, expanded = jax.jit(both_forms, static_argnums=0)(*one_layer(spec), x)
    assert 0.1 < float(jnp.std(expanded - x)) < 3
    np.testing.assert_allclose(absorbed, expanded, rtol=0, atol=1e-5)


def both_forms(structure, leaves, x):
    """The output of one layer, absorbed and expanded."""
    layer = structure.build(leaves)
    mla, positions = layer.attention, jnp.arange(x.shape[0]) + 7
    normed = layer.input_norm(x)
    q_nope, q_rope = mla.queries(normed, positions)
    latent, rope = mla.kv(normed, positions)
    rope_scores = jnp.einsum("thr,sr->hts", q_rope, rope)

    key, value = mla.expand(latent)
    expanded = causal((jnp.einsum("thn,shn->hts", q_nope, key) + rope_scores) * mla.scale)
    expanded = mla.project(jnp.einsum("hts,shv->thv", expanded, value))
    absorbed = causal((jnp.einsum("thc,sc->hts", mla.absorb(q_nope), latent) + rope_scores) * mla.scale)
    absorbed = mla.project_latent(jnp.einsum("hts,sc->thc", absorbed, latent))

    def finish(attended):
        middle = x + attended
        return middle + layer.ffn(layer.post_norm(middle), None)

    return finish(absorbed), finish(expanded)


def test_shapes_and_scales_of_what_is_cached(tiny_spec):
    """`latent_TC` and `rope_TR` are of order 1 and depend on the layer."""
    spec = tiny_spec(num_hidden_layers=4)
    structure, leaves = flatten(Decoder.initialize(spec, seed=0).moe)
    x = jax.random.normal(jax.random.key(1), (30, spec.hidden_size))
    fields = [structure.build([a[i] for a in leaves]).attention.kv(x, jnp.arange(30)) for i in range(3)]
    for latent, rope in fields:
        assert (latent.shape, rope.shape) == ((30, 16), (30, 8))
        assert float(jnp.std(latent)) == pytest.approx(1, rel=0.1)
        assert float(jnp.std(rope)) == pytest.approx(1, rel=0.4)
    assert float(jnp.abs(fields[0][0] - fields[1][0]).max()) > 1


@pytest.mark.parametrize("interleave", [True, False])
def test_rotation_depends_on_distance_alone(tiny_spec, interleave):
    spec = tiny_spec(rope_interleave=interleave)
    q, k = jax.random.normal(jax.random.key(2), (2, 1, 8))

    def score(at_q, at_k):
        return (rotate(q, jnp.array([at_q]), spec) * rotate(k, jnp.array([at_k]), spec)).sum()

    assert float(score(5, 2)) == pytest.approx(float(score(105, 102)), abs=1e-4)
    assert abs(float(score(5, 2) - score(5, 3))) > 1e-2
    assert float(score(0, 0)) == pytest.approx(float((q * k).sum()), abs=1e-6)


def test_interleaved_pairs_are_neighbours(tiny_spec):
    """At position 1 the first pair turns by 1 radian: (1, 0) becomes (cos 1, sin 1)."""
    spec = tiny_spec(qk_rope_head_dim=4)
    turned = rotate(jnp.array([[1.0, 0.0, 0.0, 0.0]]), jnp.array([1]), spec)[0]
    np.testing.assert_allclose(turned, [math.cos(1), 0, math.sin(1), 0], atol=1e-6)


def test_yarn_keeps_fast_pairs_and_squeezes_slow_ones(tiny_spec):
    plain = inverse_frequencies(tiny_spec(qk_rope_head_dim=32))
    squeezed = inverse_frequencies(
        tiny_spec(qk_rope_head_dim=32, rope_scaling=YarnSpec(factor=8.0, original_max_position_embeddings=4096))
    )
    assert squeezed[0] == plain[0]
    assert squeezed[-1] == pytest.approx(plain[-1] / 8, rel=1e-6)
    assert np.all(np.diff(squeezed / plain) <= 1e-7)


def test_yarn_temperature(tiny_spec):
    plain = tiny_spec()
    assert (softmax_scale(plain), rotation_scale(plain)) == (0.25, 1.0)
    both = tiny_spec(rope_scaling=YARN)
    assert softmax_scale(both) == pytest.approx(0.25 * (0.1 * math.log(8) + 1) ** 2)
    assert rotation_scale(both) == 1.0
    neither = tiny_spec(rope_scaling=YarnSpec(factor=8.0, original_max_position_embeddings=32))
    assert softmax_scale(neither) == 0.25
    assert rotation_scale(neither) == pytest.approx(0.1 * math.log(8) + 1)
