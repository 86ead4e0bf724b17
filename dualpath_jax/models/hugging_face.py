"""The names of a `deepseek_v3` checkpoint in transformers' format, and what each tensor becomes here.

A linear layer is stored `[out, in]`; here it is `[in, out]`, with the heads as an axis of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dualpath_configs.model import ModelSpec

Convert = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Piece:
    """One stored tensor, and where in a parameter (`index`: layer, expert) its converted values go."""

    tensor: str
    shape: tuple[int, ...]
    convert: Convert
    index: tuple[int, ...] = ()

    def at(self, prefix: str, *index: int) -> "Piece":
        """The same piece of one layer, or of one expert of it."""
        return Piece(prefix + self.tensor, self.shape, self.convert, (*index, *self.index))


def pieces(spec: ModelSpec) -> dict[str, list[Piece]]:
    """For each parameter path of a `Decoder`, the stored tensors that make it up."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    found = {
        "embedding": [Piece("model.embed_tokens.weight", (vocab, hidden), _same)],
        "norm.weight": [Piece("model.norm.weight", (hidden,), _same)],
    }
    if not spec.tie_word_embeddings:
        found["head"] = [Piece("lm_head.weight", (vocab, hidden), np.transpose)]
    for layer in range(spec.num_hidden_layers):
        dense = layer < spec.first_k_dense_replace
        stack, index = ("dense", layer) if dense else ("moe", layer - spec.first_k_dense_replace)
        for path, piece in _layer(spec, dense):
            found.setdefault(f"{stack}.{path}", []).append(piece.at(f"model.layers.{layer}.", index))
    return found


def _layer(spec: ModelSpec, dense: bool) -> Iterator[tuple[str, Piece]]:
    yield "input_norm.weight", Piece("input_layernorm.weight", (spec.hidden_size,), _same)
    yield "post_norm.weight", Piece("post_attention_layernorm.weight", (spec.hidden_size,), _same)
    for path, piece in _attention(spec).items():
        yield f"attention.{path}", piece.at("self_attn.")
    if dense:
        yield from _ffn(spec.hidden_size, spec.intermediate_size, "ffn.", "mlp.")
        return
    experts = spec.n_routed_experts
    yield "ffn.router", Piece("mlp.gate.weight", (experts, spec.hidden_size), np.transpose)
    yield "ffn.router_bias", Piece("mlp.gate.e_score_correction_bias", (experts,), _same)
    for expert in range(experts):
        for path, piece in _ffn(spec.hidden_size, spec.moe_intermediate_size, "ffn.", f"mlp.experts.{expert}."):
            yield path, piece.at("", expert)
    if spec.n_shared_experts:
        width = spec.n_shared_experts * spec.moe_intermediate_size
        yield from _ffn(spec.hidden_size, width, "ffn.shared.", "mlp.shared_experts.")


def _attention(spec: ModelSpec) -> Mapping[str, Piece]:
    hidden, heads, latent = spec.hidden_size, spec.num_attention_heads, spec.kv_lora_rank
    nope, rope, value = spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim
    query_in, query_name = spec.q_lora_rank or hidden, "q_b_proj" if spec.q_lora_rank else "q_proj"
    kv_up = "kv_b_proj.weight", (heads * (nope + value), latent)
    found = {
        "query_up": Piece(f"{query_name}.weight", (heads * (nope + rope), query_in), _heads(heads)),
        "kv_down": Piece("kv_a_proj_with_mqa.weight", (latent + rope, hidden), np.transpose),
        "kv_norm.weight": Piece("kv_a_layernorm.weight", (latent,), _same),
        "key_up": Piece(*kv_up, _heads(heads, slice(None, nope))),
        "value_up": Piece(*kv_up, _heads(heads, slice(nope, None))),
        "out": Piece("o_proj.weight", (hidden, heads * value), lambda w: w.T.reshape(heads, value, hidden)),
    }
    if spec.q_lora_rank:
        found["query_down.weight"] = Piece("q_a_proj.weight", (spec.q_lora_rank, hidden), np.transpose)
        found["query_down.norm.weight"] = Piece("q_a_layernorm.weight", (spec.q_lora_rank,), _same)
    return found


def _ffn(hidden: int, width: int, path: str, prefix: str) -> Iterator[tuple[str, Piece]]:
    yield f"{path}gate", Piece(f"{prefix}gate_proj.weight", (width, hidden), np.transpose)
    yield f"{path}up", Piece(f"{prefix}up_proj.weight", (width, hidden), np.transpose)
    yield f"{path}down", Piece(f"{prefix}down_proj.weight", (hidden, width), np.transpose)


def _same(stored: np.ndarray) -> np.ndarray:
    return stored


def _heads(heads: int, part: slice = slice(None)) -> Convert:
    """`[heads * size, in]` to `[in, heads, part of size]`."""
    return lambda stored: stored.reshape(heads, -1, stored.shape[-1])[:, part].transpose(2, 0, 1)
