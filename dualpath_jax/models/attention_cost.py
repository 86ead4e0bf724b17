"""What attention costs: the operations of each exact form of MLA, and the choice between them.

For every (query, key) pair and head, with C latent, R rope, N nope and V value numbers:

    absorbed:  2 · (C + R) for the score, 2 · C for the sum
    expanded:  2 · (N + R) for the score, 2 · V for the sum, and 2 · C · (N + V) per key to expand it, which the queries
               that visit the key together share
"""

import enum

from dualpath_configs.model import ModelSpec


class AttentionForm(enum.Enum):
    """Two ways to compute the same attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    ABSORBED = "absorbed"  # queries meet the latent
    EXPANDED = "expanded"  # the latent is expanded per head


def pair_operations(spec: ModelSpec, form: AttentionForm, tile_tokens: int) -> float:
    """Floating-point operations of one (query, key) pair, all heads, where `tile_tokens` queries share a visit."""
    latent, rope = spec.kv_lora_rank, spec.qk_rope_head_dim
    nope, value = spec.qk_nope_head_dim, spec.v_head_dim
    if form is AttentionForm.ABSORBED:
        return spec.num_attention_heads * 2.0 * (2 * latent + rope)
    return spec.num_attention_heads * 2.0 * (nope + rope + value + latent * (nope + value) / tile_tokens)


def cheaper_form(spec: ModelSpec, tile_tokens: int) -> AttentionForm:
    """The form with fewer operations where `tile_tokens` queries visit a key together."""
    return min(AttentionForm, key=lambda form: pair_operations(spec, form, tile_tokens))


def visible_pairs(cached: int, new: int) -> float:
    """(query, key) pairs of `new` tokens after `cached` ones: each sees all cached, those before it, and itself."""
    return new * cached + new * (new + 1) / 2


def attention_flops(spec: ModelSpec, cached: int, new: int, tile_tokens: int) -> float:
    """Attention operations of one chunk in all layers (paper, scheduling: what the compute quota is predicted from)."""
    form = cheaper_form(spec, tile_tokens)
    return spec.num_hidden_layers * visible_pairs(cached, new) * pair_operations(spec, form, tile_tokens)
