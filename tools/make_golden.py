"""Make tests/golden: tiny random checkpoints in the real format, and their logits, from transformers.

Neither torch nor transformers is a dependency of the project; what this writes is committed. In an environment
of its own:

    pip install torch==2.13.0 'transformers==5.24.*'
    python tools/make_golden.py

Each folder holds `config.json` and safetensors as `save_pretrained` writes them, and `expected.npz` with `tokens` int32
`[T]` and `logits` float32 `[T, vocab]`, computed in float32.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
TOKENS = 48

COMMON = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": None,
    "num_nextn_predict_layers": 0,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16}

CONFIGURATIONS = {
    "plain": {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    },
    "like_v3": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "first_k_dense_replace": 2,
        "num_attention_heads": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 2.5,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "no_shared": {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 0,
        "num_attention_heads": 8,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "n_shared_experts": 0,
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
        "rms_norm_eps": 1e-3,
        "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.0},
    },
    "tied": {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_attention_heads": 3,
        "q_lora_rank": None,
        "kv_lora_rank": 24,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 1,
        "routed_scaling_factor": 2.0,
        "tie_word_embeddings": True,
        "rope_interleave": False,
        "rope_parameters": YARN | {"mscale": 1.4, "mscale_all_dim": 0.6, "beta_fast": 4.0, "beta_slow": 0.5},
    },
    "all_dense": {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "num_attention_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
SHARDED = {"like_v3"}
BFLOAT16 = {"tied"}


def randomize(model: DeepseekV3ForCausalLM, seed: int) -> None:
    """Weights that keep activations of order 1, norms that are not 1, router biases that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    named = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n.endswith("correction_bias"))]
    for name, tensor in named:
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("correction_bias"):
            value = 0.2 * noise
        elif tensor.ndim == 1:
            value = 1 + 0.2 * noise
        else:
            fan_in = 1 if "embed_tokens" in name and not model.config.tie_word_embeddings else max(tensor.shape[-1], 1)
            value = noise / math.sqrt(fan_in)
        tensor.data.copy_(value.to(torch.bfloat16) if model.config.name_or_path in BFLOAT16 else value)


def make(name: str, seed: int) -> None:
    """One folder of golden files."""
    config = DeepseekV3Config(**COMMON | CONFIGURATIONS[name], name_or_path=name, attn_implementation="eager")
    model = DeepseekV3ForCausalLM(config).eval().to(torch.float32)
    randomize(model, seed)
    tokens = torch.randint(0, config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    stored = model.to(torch.bfloat16) if name in BFLOAT16 else model
    stored.save_pretrained(folder, max_shard_size="80KB" if name in SHARDED else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez(folder / "expected.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())
    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size_bytes / 1000:.0f} KB, logits of deviation {logits.std():.2f}")


if __name__ == "__main__":
    for seed, name in enumerate(CONFIGURATIONS):
        make(name, seed)
