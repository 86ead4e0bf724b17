"""Tiny clusters on the Flax engine, and whether what they generate agrees with the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualpath_configs import ClusterSpec, load_cluster
from dualpath_jax.engine.oracle import build_oracle
from dualpath_jax.replay.agreement import Agreement, compare
from dualpath_jax.rollout.generation import Generation

VOCABULARY = 96
BLOCK = 8

# One token bucket and one prefix bucket, so that a layer group of a kind is one program.
TINY = {
    "block_tokens": BLOCK,
    "max_context_tokens": 128,
    "host_buffer_blocks": 64,
    "engine.prefill_token_buckets": (32,),
    "engine.prefix_token_buckets": (128,),
    "engine.shard_tokens": 32,
    "engine.decode_pages": 48,
    "engine.decode_slots": 3,
    "network.snic_bytes_per_s": None,
    "network.cnic_bytes_per_s": None,
    "model.vocab_size": VOCABULARY,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 3,
    "model.first_k_dense_replace": 1,
    "model.intermediate_size": 48,
    "model.kv_lora_rank": 16,
    "model.qk_nope_head_dim": 8,
    "model.qk_rope_head_dim": 8,
    "model.v_head_dim": 12,
    "model.moe_intermediate_size": 16,
}


def flax_spec(folder: Path, **overrides: object) -> ClusterSpec:
    """The tiny spec, two engines a node; keyword names spell dotted keys with `__`."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_cluster("local_1p1d", {**TINY, "storage.url": f"file://{folder / 'kv'}", **keys})


def prompt(seed: int, tokens: int) -> list[int]:
    """Token ids within the tiny vocabulary."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, tokens).tolist()


@dataclass(frozen=True)
class Asked:
    """A prompt and what came of it."""

    prompt: Sequence[int]
    result: Generation


def agreement(spec: ClusterSpec, asked: Sequence[Asked]) -> tuple[Agreement, float]:
    """The comparison of generations with the no-cache reference over the same contexts, and ε."""
    oracle, epsilon = build_oracle(spec)
    choices = {("asked", i): one.result.choices for i, one in enumerate(asked)}
    expected = {("asked", i): oracle(one.prompt, one.result.tokens) for i, one in enumerate(asked)}
    return compare("the cluster", choices, "the oracle", expected, epsilon=epsilon), epsilon


def check(spec: ClusterSpec, asked: Sequence[Asked]) -> None:
    """Every generation agrees with the oracle, and there was something to compare."""
    found, epsilon = agreement(spec, asked)
    assert found.problems == (), found.line(epsilon)
    assert found.positions == sum(len(one.result.tokens) for one in asked) > 0
