"""The life of a request on the fake engine, where agreement is equality."""

import asyncio

import numpy as np
import pytest

from dualpath_configs import MODES
from dualpath_jax.engine.base import Sampling
from dualpath_jax.engine.fake import choose, digest, new_kv
from tests.cluster.harness import running, small_spec


def expected(spec, prompt, max_tokens):
    """The oracle: the whole sequence anew for every token, no cache."""
    words = (spec.model.kv_lora_rank + spec.model.qk_rope_head_dim) * 4 // 8
    tokens, generated = list(prompt), []
    for _ in range(max_tokens):
        kv = new_kv(0, spec.model.num_hidden_layers, None, np.array(tokens), words)
        token = choose(digest(kv, 0, 0), spec.model.vocab_size, len(tokens), Sampling(), None).token
        generated.append(token)
        tokens.append(token)
    return generated


def prompt_of(length, seed=0):
    return np.random.default_rng(seed).integers(0, 97, length).tolist()


async def test_a_first_turn_agrees_with_the_oracle(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompt = prompt_of(45)
        result = await cluster.generate(prompt, 20)
    assert result.tokens == expected(spec, prompt, 20)
    assert result.hit_tokens == 0


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_turns_of_a_session_hit_what_was_stored_and_agree(tmp_path, mode):
    spec = small_spec(tmp_path, mode=MODES[mode].model_dump())
    async with running(spec) as cluster:
        history = []
        for turn in range(5):
            history += prompt_of(11 + turn, seed=turn)
            result = await cluster.generate(history, 9)
            assert result.tokens == expected(spec, history, 9)
            if turn:
                assert result.hit_tokens == (len(history) - 11 - turn - 1) // 8 * 8
            history += result.tokens
            await cluster.quiet()


async def test_many_requests_at_once_agree(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompts = [prompt_of(5 + 17 * i % 150, seed=i) for i in range(12)]
        results = await asyncio.gather(*(cluster.generate(prompt, 12) for prompt in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == expected(spec, prompt, 12)
