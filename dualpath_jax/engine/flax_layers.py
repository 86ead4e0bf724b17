"""One decoder layer around each attention core, on one engine's tokens, inside `jax.shard_map`."""

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.attention import WORDS, KVView, QueryTiles, expanded_view, latent_view, prefill_attention
from dualpath_jax.models.attention_cost import AttentionForm, cheaper_form
from dualpath_jax.models.decoder import DecoderLayer
from dualpath_jax.models.kv import round_kv
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.paged_attention import paged_attention
from dualpath_jax.models.parameters import ENGINE_AXIS


@final
@dataclass(frozen=True)
class TileShape:
    """How prefill attention is cut: queries of a tile, tokens of a context shard, and the form that suits them."""

    tile_tokens: int
    shard_tokens: int
    form: AttentionForm

    @classmethod
    def choose(cls, spec: ModelSpec, *, packed_tokens: int, shard_tokens: int) -> "TileShape":
        tile = query_tile_tokens(packed_tokens)
        return cls(tile, shard_tokens, cheaper_form(spec, tile))


def query_tile_tokens(packed_tokens: int) -> int:
    """Tokens of a query tile for passes of that width: small tiles waste less, large ones run faster."""
    return min(packed_tokens, max(32, packed_tokens // 8))


def prefill_layer(
    layer: DecoderLayer,
    x_TD: jax.Array,
    positions_T: jax.Array,
    *,
    prefix_SW: jax.Array,
    tiles: QueryTiles,
    shape: TileShape,
) -> tuple[jax.Array, jax.Array]:
    """The residual stream after the layer, and the new tokens' KV words `[T, W]`."""
    mla = layer.attention
    normed = layer.input_norm(x_TD)
    new_TW = _kv_words(mla, normed, positions_T)
    nope_THN, rope_THR = mla.queries(normed, positions_T)
    absorbed = shape.form is AttentionForm.ABSORBED
    with jax.named_scope("prefill_attention"):
        o_THV = prefill_attention(
            _joined_queries(mla, mla.absorb(nope_THN) if absorbed else nope_THN, rope_THR),
            prefix_SW,
            new_TW,
            tiles=tiles,
            view=_view(mla, shape.form),
            tile_tokens=shape.tile_tokens,
            shard_tokens=shape.shard_tokens,
        ).astype(x_TD.dtype)
    x_TD = x_TD + (mla.project_latent(o_THV) if absorbed else mla.project(o_THV))
    return x_TD + layer.ffn(layer.post_norm(x_TD), ENGINE_AXIS), new_TW


def decode_layer(
    layer: DecoderLayer,
    x_ND: jax.Array,
    cache_PLtW: jax.Array,
    *,
    index: jax.Array,
    table_NP: jax.Array,
    length_N: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One token per slot, at position `length_N`: the residual stream after layer `index`, and the tokens' KV words."""
    mla = layer.attention
    normed = layer.input_norm(x_ND)
    own_NW = _kv_words(mla, normed, length_N)
    nope_NHN, rope_NHR = mla.queries(normed, length_N)
    # The rope key is summed with the values and dropped after: cheaper than copying the latent out of every row.
    view = latent_view(mla.spec.kv_dtype, own_NW.shape[1])
    with jax.named_scope("paged_attention"):
        o_NHV = paged_attention(
            _joined_queries(mla, mla.absorb(nope_NHN), rope_NHR),
            own_NW,
            cache_PLtW,
            layer=index,
            table_NP=table_NP,
            length_N=length_N,
            view=view,
        )
    o_NHC = o_NHV[:, :, : mla.spec.kv_lora_rank].astype(x_ND.dtype)
    x_ND = x_ND + mla.project_latent(o_NHC)
    return x_ND + layer.ffn(layer.post_norm(x_ND), ENGINE_AXIS), own_NW


def _kv_words(mla: MLA, normed_TD: jax.Array, positions_T: jax.Array) -> jax.Array:
    """What is cached of these tokens: latent and rope key side by side, in the KV dtype, as words `[T, W]`."""
    fields = [round_kv(field, mla.spec) for field in mla.kv(normed_TD, positions_T)]
    return lax.bitcast_convert_type(jnp.concatenate(fields, axis=-1), WORDS[mla.spec.kv_dtype])


def _joined_queries(mla: MLA, inner_THK: jax.Array, rope_THR: jax.Array) -> jax.Array:
    """Scaled queries whose last axis matches a row of keys, float32."""
    return jnp.concatenate([inner_THK, rope_THR], axis=-1).astype(jnp.float32) * mla.scale


def _view(mla: MLA, form: AttentionForm) -> KVView:
    spec = mla.spec
    if form is AttentionForm.ABSORBED:
        return latent_view(spec.kv_dtype, spec.kv_lora_rank)
    return expanded_view(spec.kv_dtype, spec.kv_lora_rank, spec.v_head_dim, mla.expand)
