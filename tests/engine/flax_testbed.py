"""Small engine groups, shared by all tests of a process, and helpers that play a node's part with one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dualpath_configs import ClusterSpec, EngineSpec, ModelSpec
from dualpath_jax.engine.base import DecodeRequest, PrefillChunk, PrefillPass, Sampling, Slot, Stage, TokenChoice
from dualpath_jax.engine.flax_engine import FlaxEngineGroup
from dualpath_jax.models.reference import reference_logprobs

BLOCK = 8
ALL = ((0, 3),)
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-3}
"""Of log-probabilities. With bfloat16 a KV number that lies between two of its values may fall to either side."""


def cluster_spec(
    *,
    engines: int = 2,
    kv_dtype: str = "float32",
    layers: int = 3,
    latent: int = 16,
    engine: EngineSpec | None = None,
    **changed: object,
) -> ClusterSpec:
    model = ModelSpec(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=layers,
        first_k_dense_replace=1,
        intermediate_size=48,
        num_attention_heads=4,
        kv_lora_rank=latent,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        max_position_embeddings=1024,
        kv_dtype=kv_dtype,
    )
    buckets = EngineSpec(
        prefill_token_buckets=(72,), prefix_token_buckets=(128,), shard_tokens=32, decode_slots=3, decode_pages=32
    )
    fields = {"block_tokens": BLOCK, "prefill_nodes": 1, "decode_nodes": 1, "max_context_tokens": 128}
    return ClusterSpec(model=model, engines_per_node=engines, engine=engine or buckets, **(fields | changed))


@cache
def engine_group(engines: int = 2, kv_dtype: str = "float32") -> FlaxEngineGroup:
    """Prefill runs in the expanded form; with bfloat16 KV in the absorbed one."""
    latent = 8 if kv_dtype == "bfloat16" else 16
    return FlaxEngineGroup(cluster_spec(engines=engines, kv_dtype=kv_dtype, latent=latent))


_taken: list[tuple[FlaxEngineGroup, Slot]] = []


def idle_group(engines: int = 2, kv_dtype: str = "float32") -> FlaxEngineGroup:
    """The shared engine group, with the slots free that an earlier test took."""
    while _taken:
        engine, slot = _taken.pop()
        engine.release(slot)
    return engine_group(engines, kv_dtype)


def insert(engine: FlaxEngineGroup, request: DecodeRequest, kv: np.ndarray) -> Slot:
    """Hand KV `[layers, prompt tokens, bytes]` to the decode batch."""
    slot = engine.insert(request, full_blocks(engine, kv))
    _taken.append((engine, slot))
    return slot


def prompt(seed: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 96, tokens)


@dataclass
class Prefilled:
    """What a pass gave for one chunk: KV bytes `[layers, new tokens, bytes]`, and the choice."""

    kv: np.ndarray
    choice: TokenChoice | None


def fill_stage(
    engine: FlaxEngineGroup,
    stage: Stage,
    pass_: PrefillPass,
    prefixes: Sequence[np.ndarray | None],
    group: tuple[int, int],
) -> None:
    """Put prefix KV `[layers, tokens, bytes]` of each chunk where the pass expects it; what is left over is NaN."""
    stage.buffer[:] = 0xFF
    (first, last), size = group, engine.layout.layer_block_bytes
    for chunk, at, kv in zip(pass_.chunks, pass_.stage_blocks, prefixes, strict=True):
        for block in range(chunk.start // BLOCK):
            assert kv is not None
            for layer in range(first, last):
                offset = stage.offset(pass_, last - first, engine=chunk.engine, layer=layer - first, block=at + block)
                source = kv[layer, block * BLOCK : (block + 1) * BLOCK]
                stage.buffer[offset : offset + size] = np.ascontiguousarray(source).reshape(-1)


def run_pass(
    engine: FlaxEngineGroup,
    chunks: Sequence[PrefillChunk],
    prefixes: Sequence[np.ndarray | None],
    groups: Sequence[tuple[int, int]] = ALL,
) -> list[Prefilled]:
    """One pass through all layers, a layer group at a time through one stage that is refilled."""
    pass_ = engine.plan_prefill(chunks)
    stage = engine.new_stage(max(last - first for first, last in groups))
    engine.start_prefill(pass_)
    parts = []
    for first, last in groups:
        fill_stage(engine, stage, pass_, prefixes, (first, last))
        parts.append(engine.run_layers(first, last, stage))
    kv = np.concatenate(parts, axis=1)
    places = zip(chunks, pass_.token_offsets, engine.finish_prefill(), strict=True)
    return [Prefilled(kv[c.engine, :, at : at + len(c.tokens)], choice) for c, at, choice in places]


def prefill(engine: FlaxEngineGroup, tokens: np.ndarray, *, on: int = 0, sampling: Sampling | None = None) -> Prefilled:
    """A whole prompt in one pass."""
    return run_pass(engine, [PrefillChunk("prompt", on, tokens, 0, sampling or Sampling())], [None])[0]


def full_blocks(engine: FlaxEngineGroup, kv: np.ndarray) -> list[np.ndarray]:
    """Full Blocks of KV `[layers, tokens, bytes]`; what the last one lacks is NaN."""
    layers, tokens, width = kv.shape
    padded = np.full((layers, engine.layout.blocks_of(tokens) * BLOCK, width), 0xFF, np.uint8)
    padded[:, :tokens] = kv
    return [np.ascontiguousarray(padded[:, at : at + BLOCK]).reshape(-1) for at in range(0, padded.shape[1], BLOCK)]


def start_decode(
    engine: FlaxEngineGroup, tokens: np.ndarray, max_tokens: int, *, on: int = 0, sampling: Sampling | None = None
) -> tuple[Slot, TokenChoice]:
    """Prefill a prompt and hand it to the decode batch of the same group."""
    sampling = sampling or Sampling()
    done = prefill(engine, tokens, on=on, sampling=sampling)
    assert done.choice is not None
    request = DecodeRequest("prompt", on, len(tokens), done.choice.token, max_tokens, sampling)
    return insert(engine, request, done.kv), done.choice


def drain(engine: FlaxEngineGroup) -> dict[Slot, list[TokenChoice]]:
    """Step until nobody owes a token."""
    choices: dict[Slot, list[TokenChoice]] = {}
    while results := engine.step():
        for slot, choice in results:
            choices.setdefault(slot, []).append(choice)
    return choices


def numbers(engine: FlaxEngineGroup, kv: np.ndarray) -> np.ndarray:
    """KV bytes as float32."""
    return np.ascontiguousarray(kv).view(engine.spec.model.kv_dtype).astype(np.float32)


def check_choices(engine: FlaxEngineGroup, tokens: np.ndarray, choices: Sequence[TokenChoice]) -> None:
    """Each choice that followed `tokens` agrees with the oracle (what agreement means: greedy within 2ε)."""
    eps = TOLERANCE[engine.spec.model.kv_dtype]
    taken = [choice.token for choice in choices]
    assert engine.model is not None
    logprobs = reference_logprobs(engine.model, [*tokens, *taken])[len(tokens) - 1 : -1]
    for row, choice in zip(logprobs, choices, strict=True):
        top = np.sort(row)[::-1][:2]
        np.testing.assert_allclose(choice.logprob, row[choice.token], atol=eps)
        np.testing.assert_allclose(choice.top_logprobs, top, atol=eps)
        assert row[choice.top_tokens[0]] >= top[0] - 2 * eps
        assert row[choice.top_tokens[1]] >= top[1] - 2 * eps
