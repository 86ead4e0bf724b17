"""Specs that are small and differ in everything that the decoder distinguishes."""

from pathlib import Path
from typing import Any

import pytest

from dualpath_configs import ModelSpec

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 16,
    "max_position_embeddings": 1024,
    "kv_dtype": "float32",
}


@pytest.fixture(scope="session")
def tiny_spec():
    """`tiny_spec(field=value, ...)`: a small spec with these fields changed."""
    return lambda **changed: ModelSpec(**TINY | changed)


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    return Path(__file__).parent.parent / "golden"
