"""What decides a model's KV: layout, digest, rounding."""

import jax.numpy as jnp
import pytest

from dualpath_configs import ModelSpec, YarnSpec
from dualpath_jax.models import kv_layout, model_digest, round_kv


def test_layout_is_latent_and_rope(tiny_spec):
    layout = kv_layout(tiny_spec(kv_dtype="bfloat16"), block_tokens=64)
    assert [(f.name, f.shape, f.dtype) for f in layout.fields] == [
        ("latent", (16,), "bfloat16"),
        ("rope", (8,), "bfloat16"),
    ]
    assert (layout.layers, layout.block_tokens, layout.token_bytes) == (3, 64, 3 * 48)


def test_digest_follows_every_field_but_the_limit(tiny_spec):
    spec = tiny_spec()
    changed = {
        "rope_scaling": YarnSpec(factor=2.0, original_max_position_embeddings=64),
        "q_lora_rank": 4,
        "kv_dtype": "bfloat16",
        "compute_dtype": "bfloat16",
    }
    digests = {model_digest(spec)}
    for name in ModelSpec.model_fields:
        value = getattr(spec, name)
        other = changed.get(name, not value if isinstance(value, bool) else (value and value * 2) or 2)
        digests.add(model_digest(spec.model_copy(update={name: other})))
    assert len(digests) == len(ModelSpec.model_fields)
    assert model_digest(spec.model_copy(update={"max_position_embeddings": 7})) == model_digest(spec)


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", 1.0), ("float32", 1.001)])
def test_rounding_is_to_the_kv_dtype(tiny_spec, dtype, expected):
    rounded = round_kv(jnp.float32(1.001), tiny_spec(kv_dtype=dtype))
    assert rounded.dtype.name == dtype
    assert float(rounded) == pytest.approx(expected, abs=1e-7)
