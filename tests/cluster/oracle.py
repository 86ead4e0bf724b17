"""What the fake engine must say, worked out anew for every token."""

import numpy as np

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import Sampling
from dualpath_jax.engine.fake import choose, digest, new_kv


def expected_tokens(spec: ClusterSpec, prompt: list[int], count: int, sampling: Sampling | None = None) -> list[int]:
    """The `count` tokens after `prompt`: the whole sequence anew for every token, no cache."""
    words = (spec.model.kv_lora_rank + spec.model.qk_rope_head_dim) * 4 // 8
    tokens = list(prompt)
    for _ in range(count):
        kv = new_kv(0, spec.model.num_hidden_layers, None, np.array(tokens), words)
        choice = choose(digest(kv, 0, 0), spec.model.vocab_size, len(tokens), sampling or Sampling(), None)
        tokens.append(choice.token)
    return tokens[len(prompt) :]


def random_prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids within the small spec's vocabulary."""
    return np.random.default_rng(seed).integers(0, 97, length).tolist()
