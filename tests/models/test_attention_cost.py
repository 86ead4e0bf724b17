"""The operation counts, worked out by hand, and what is chosen from them."""

import pytest

from dualpath_configs import ModelSpec
from dualpath_jax.models.attention_cost import (
    AttentionForm,
    attention_flops,
    cheaper_form,
    pair_operations,
    visible_pairs,
)


def model(*, latent: int, rope: int, nope: int, value: int, heads: int) -> ModelSpec:
    return ModelSpec(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        intermediate_size=8,
        num_attention_heads=heads,
        kv_lora_rank=latent,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        n_routed_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        max_position_embeddings=64,
    )


DEEPSEEK_V3 = model(latent=512, rope=64, nope=128, value=128, heads=128)


def test_operations_by_hand() -> None:
    assert pair_operations(DEEPSEEK_V3, AttentionForm.ABSORBED, 1) == 128 * 2 * (576 + 512)
    assert pair_operations(DEEPSEEK_V3, AttentionForm.EXPANDED, 64) == 128 * 2 * (192 + 128 + 512 * 256 / 64)


@pytest.mark.parametrize(
    ("queries", "form"), [(1, AttentionForm.ABSORBED), (128, AttentionForm.ABSORBED), (256, AttentionForm.EXPANDED)]
)
def test_few_queries_absorb_and_many_expand(queries: int, form: AttentionForm) -> None:
    assert cheaper_form(DEEPSEEK_V3, queries) is form


def test_the_switch_is_where_the_counts_cross() -> None:
    spec = model(latent=96, rope=32, nope=32, value=32, heads=4)
    # 2·96 + 32 = 32 + 32 + 32 + 96 · 64 / t at t = 48.
    assert cheaper_form(spec, 47) is AttentionForm.ABSORBED
    assert cheaper_form(spec, 49) is AttentionForm.EXPANDED


def test_pairs_are_counted_one_by_one() -> None:
    assert visible_pairs(5, 3) == sum(1 for new in range(3) for key in range(8) if key <= 5 + new)
    assert visible_pairs(10, 0) == 0
    # A chunk and what follows it add up to the whole.
    assert visible_pairs(0, 64) == visible_pairs(0, 24) + visible_pairs(24, 40)


def test_flops_count_all_layers() -> None:
    spec = model(latent=96, rope=32, nope=32, value=32, heads=4)
    assert attention_flops(spec, 100, 2, 1) == 3 * (101 + 102) * 4 * 2 * (2 * 96 + 32)
