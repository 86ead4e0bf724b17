"""Layerwise prefill against the oracle that has no cache."""

import numpy as np
import pytest

from dualpath_jax.engine.base import PrefillChunk, Sampling
from dualpath_jax.engine.flax_layers import TileShape
from dualpath_jax.models.attention_cost import AttentionForm
from tests.engine.flax_testbed import (
    ALL,
    BLOCK,
    check_choices,
    engine_group,
    numbers,
    prefill,
    prompt,
    run_pass,
)

LENGTH = 61


@pytest.fixture(scope="module")
def whole():
    """A prompt that was prefilled at once on engine 0."""
    tokens = prompt(1, LENGTH)
    return tokens, prefill(engine_group(), tokens)


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_whole_prompt_on_every_engine(engines: int) -> None:
    engine = engine_group(engines)
    prompts = [prompt(e, LENGTH + e) for e in range(engines)]
    chunks = [PrefillChunk(f"r{e}", e, tokens, 0, Sampling()) for e, tokens in enumerate(prompts)]
    for tokens, done in zip(prompts, run_pass(engine, chunks, [None] * engines), strict=True):
        check_choices(engine, tokens, [done.choice])


@pytest.mark.parametrize("start", range(0, LENGTH, BLOCK))
def test_prefix_from_the_stage_at_every_block(whole, start: int) -> None:
    tokens, done = whole
    engine = engine_group()
    chunk = PrefillChunk("r", 0, tokens[start:], start, Sampling())
    part = run_pass(engine, [chunk], [done.kv[:, :start]])[0]
    check_choices(engine, tokens, [part.choice])
    np.testing.assert_allclose(numbers(engine, part.kv), numbers(engine, done.kv[:, start:]), atol=1e-5)


@pytest.mark.parametrize("groups", [((0, 1), (1, 2), (2, 3)), ((0, 2), (2, 3)), ((0, 1), (1, 3))])
def test_layer_groups_give_the_same(whole, groups) -> None:
    tokens, done = whole
    engine = engine_group()
    chunk = PrefillChunk("r", 1, tokens[16:], 16, Sampling())
    part = run_pass(engine, [chunk], [done.kv[:, :16]], groups)[0]
    check_choices(engine, tokens, [part.choice])
    np.testing.assert_allclose(numbers(engine, part.kv), numbers(engine, done.kv[:, 16:]), atol=1e-5)


def test_chunked_prefill_builds_on_its_own_kv() -> None:
    engine, tokens = engine_group(), prompt(2, 117)
    kv = np.zeros((3, 0, engine.layout.token_layer_bytes), np.uint8)
    for start, end in ((0, 40), (40, 48), (48, 117)):
        last = end == len(tokens)
        chunk = PrefillChunk("r", 0, tokens[start:end], start, Sampling() if last else None)
        part = run_pass(engine, [chunk], [kv])[0]
        kv = np.concatenate([kv, part.kv], axis=1)
        assert (part.choice is not None) == last
    check_choices(engine, tokens, [part.choice])


@pytest.mark.parametrize(
    ("kv_dtype", "form"), [("float32", AttentionForm.EXPANDED), ("bfloat16", AttentionForm.ABSORBED)]
)
def test_mixed_batch(kv_dtype: str, form: AttentionForm) -> None:
    """Requests of one pass do not see each other: prefixes of no whole shard, one-token chunks, an uneven load."""
    engine = engine_group(2, kv_dtype)
    assert TileShape.choose(engine.spec.model, packed_tokens=72, shard_tokens=32).form is form
    plan = [(0, 29, 24), (1, 70, 0), (0, 41, 40), (0, 30, 8), (0, 57, 40)]
    prompts = [prompt(10 + i, length) for i, (_, length, _) in enumerate(plan)]
    wholes = [prefill(engine, tokens, on=e) for tokens, (e, _, _) in zip(prompts, plan, strict=True)]
    chunks, prefixes = [], []
    for i, (e, _, start) in enumerate(plan):
        chunks.append(PrefillChunk(f"r{i}", e, prompts[i][start:], start, Sampling()))
        prefixes.append(wholes[i].kv[:, :start])
    for tokens, done in zip(prompts, run_pass(engine, chunks, prefixes), strict=True):
        check_choices(engine, tokens, [done.choice])


@pytest.mark.parametrize("engines", [2, 4])
def test_the_same_bytes_give_the_same_bits(engines: int) -> None:
    engine, tokens = engine_group(engines), prompt(3, LENGTH)
    prefix = prefill(engine, tokens, on=1).kv[:, :32]
    chunk = PrefillChunk("r", 1, tokens[32:], 32, Sampling())
    first, second = (run_pass(engine, [chunk], [prefix])[0] for _ in range(2))
    np.testing.assert_array_equal(first.kv, second.kv)
    assert first.choice == second.choice


def test_more_choices_than_one_call_makes() -> None:
    engine = engine_group()
    chunks = [PrefillChunk(f"r{i}", 0, prompt(i, 1 + i % 3), 0, Sampling()) for i in range(30)]
    for chunk, done in zip(chunks, run_pass(engine, chunks, [None] * 30), strict=True):
        check_choices(engine, chunk.tokens, [done.choice])


def test_a_forced_token_reports_its_own_logprob(whole) -> None:
    tokens, done = whole
    engine = engine_group()
    chunk = PrefillChunk("r", 0, tokens, 0, Sampling(), forced_token=7)
    forced = run_pass(engine, [chunk], [None])[0].choice
    assert forced.token == 7
    assert forced.top_tokens == done.choice.top_tokens
    check_choices(engine, tokens, [forced])


def test_wrong_order_of_calls() -> None:
    engine = engine_group()
    stage = engine.new_stage(3)
    pass_ = engine.plan_prefill([PrefillChunk("r", 0, prompt(0, 4), 0, Sampling())])
    engine.start_prefill(pass_)
    with pytest.raises(ValueError, match=r"layers \[1, 3\): expected to go on with layer 0"):
        engine.run_layers(1, 3, stage)
    with pytest.raises(ValueError, match="has run 0 layers: expected all 3"):
        engine.finish_prefill()
    with pytest.raises(ValueError, match=r"use new_stage\(3\)"):
        engine.run_layers(0, 3, engine.new_stage(2))
    engine.run_layers(*ALL[0], stage)
    engine.finish_prefill()
    with pytest.raises(ValueError, match="call start_prefill first"):
        engine.finish_prefill()
