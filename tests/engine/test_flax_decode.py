"""Paged decode that continues prefill, against the oracle."""

import numpy as np
import pytest

from dualpath_jax.engine.base import DecodeRequest, Sampling, Slot
from tests.engine.flax_testbed import (
    BLOCK,
    check_choices,
    drain,
    full_blocks,
    idle_group,
    insert,
    numbers,
    prefill,
    prompt,
    start_decode,
)


@pytest.mark.parametrize(("engines", "kv_dtype"), [(1, "float32"), (2, "float32"), (4, "float32"), (2, "bfloat16")])
def test_generation_over_several_pages(engines: int, kv_dtype: str) -> None:
    engine = idle_group(engines, kv_dtype)
    prompts = {}
    for i, length in enumerate((1, 16, 37)):
        tokens = prompt(20 + i, length)
        slot, first = start_decode(engine, tokens, 2 * BLOCK + 5 + i, on=i % engines)
        prompts[slot] = tokens, first, 2 * BLOCK + 5 + i
    results = drain(engine)
    for slot, (tokens, first, max_tokens) in prompts.items():
        choices = [first, *results[slot]]
        assert len(choices) == max_tokens
        check_choices(engine, tokens, choices)


def test_requests_that_join_late_change_nothing() -> None:
    engine = idle_group()
    tokens, other = prompt(30, 21), prompt(31, 50)
    slot, _ = start_decode(engine, tokens, 12)
    alone = drain(engine)[slot]
    engine.release(slot)
    slot, _ = start_decode(engine, tokens, 12)
    mixed = [choice for _ in range(3) for _, choice in engine.step()]
    start_decode(engine, other, 5)
    mixed += drain(engine)[slot]
    assert [choice.token for choice in mixed] == [choice.token for choice in alone]
    np.testing.assert_allclose([c.logprob for c in mixed], [c.logprob for c in alone], atol=1e-5)


def test_exported_blocks() -> None:
    engine, tokens = idle_group(), prompt(32, 21)
    done = prefill(engine, tokens, on=1)
    request = DecodeRequest("r", 1, 21, done.choice.token, 20)
    slot = insert(engine, request, done.kv)
    for block, wanted in enumerate(full_blocks(engine, done.kv)[:2]):
        np.testing.assert_array_equal(engine.export_block(slot, block), wanted)
    with pytest.raises(ValueError, match=r"block 2 .* expected \[0, 2\)"):
        engine.export_block(slot, 2)
    generated = [done.choice.token] + [choice.token for choice in drain(engine)[slot]]
    # The last token has not been fed: KV of 21 + 19 tokens is there, five whole blocks.
    again = prefill(engine, np.array([*tokens, *generated[:-1]]))
    for block, wanted in enumerate(full_blocks(engine, again.kv)):
        got = engine.export_block(slot, block).reshape(3, BLOCK, -1)
        np.testing.assert_allclose(numbers(engine, got), numbers(engine, wanted.reshape(3, BLOCK, -1)), atol=1e-5)


def test_forced_tokens_are_followed() -> None:
    engine, tokens, forced = idle_group(), prompt(33, 11), tuple(int(t) for t in prompt(34, 9))
    done = prefill(engine, tokens)
    slot = insert(engine, DecodeRequest("r", 0, 11, forced[0], 9, forced_tokens=forced), done.kv)
    choices = drain(engine)[slot]
    assert tuple(choice.token for choice in choices) == forced[1:]
    check_choices(engine, np.array([*tokens, forced[0]]), choices)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    engine, tokens = idle_group(), prompt(35, 13)
    hot = Sampling(temperature=1.5, seed=2**40 + 5)
    slot, first = start_decode(engine, tokens, 10, on=1, sampling=hot)
    alone = [first, *drain(engine)[slot]]
    engine.release(slot)
    start_decode(engine, prompt(36, 30), 7, on=1, sampling=Sampling(temperature=1.5, seed=9))
    slot, first = start_decode(engine, tokens, 10, on=1, sampling=hot)
    assert [first.token] + [c.token for c in drain(engine)[slot]] == [c.token for c in alone]
    check_choices(engine, tokens, alone)
    assert any(choice.token != choice.top_tokens[0] for choice in alone)


def test_slots_and_pages_are_limits() -> None:
    engine = idle_group()
    assert engine.can_insert(0, 128)
    assert not engine.can_insert(0, 129)
    slots = [start_decode(engine, prompt(40, 8), 80)[0] for _ in range(2)]
    # 2 · 11 of 32 pages are taken, one slot is left.
    assert engine.can_insert(0, 80)
    assert not engine.can_insert(0, 81)
    assert engine.can_insert(1, 128)
    slots.append(start_decode(engine, prompt(41, 8), 1)[0])
    assert not engine.can_insert(0, 9)
    blocks = full_blocks(engine, prefill(engine, prompt(41, 8)).kv)
    with pytest.raises(ValueError, match="has 9 tokens in all: expected can_insert to be true"):
        engine.insert(DecodeRequest("late", 0, 8, 1, 1), blocks)
    for slot in slots:
        engine.release(slot)
    assert engine.can_insert(0, 128)


def test_a_released_slot_is_nobody_s() -> None:
    engine = idle_group()
    old, _ = start_decode(engine, prompt(42, 8), 5)
    engine.release(old)
    engine.release(old)
    new, _ = start_decode(engine, prompt(43, 9), 5)
    assert (new.engine, new.index) == (old.engine, old.index)
    engine.release(old)
    with pytest.raises(ValueError, match="was released"):
        engine.export_block(old, 0)
    assert [slot for slot, _ in engine.step()] == [new]
    engine.release(Slot(0, 2, 999))


def test_reused_pages_hold_nothing_of_their_past() -> None:
    engine, tokens = idle_group(), prompt(44, 19)
    slot, first = start_decode(engine, prompt(45, 60), 60)
    drain(engine)
    engine.release(slot)
    slot, first = start_decode(engine, tokens, 20)
    check_choices(engine, tokens, [first, *drain(engine)[slot]])


@pytest.mark.parametrize(
    ("changed", "blocks", "expected"),
    [
        ({"max_tokens": 0}, 1, "1 or more"),
        ({}, 2, "2 blocks: expected 1 for 8 prompt tokens"),
        ({"forced_tokens": (1, 2)}, 1, r"2 forced tokens: expected max_tokens \(3\)"),
    ],
)
def test_requests_that_do_not_fit(changed: dict, blocks: int, expected: str) -> None:
    engine = idle_group()
    fields = {"request": "r", "engine": 0, "prompt_tokens": 8, "first_token": 1, "max_tokens": 3} | changed
    with pytest.raises(ValueError, match=expected):
        engine.insert(DecodeRequest(**fields), [np.zeros(engine.layout.block_bytes, np.uint8)] * blocks)
    assert engine.can_insert(0, 128)


def test_no_step_where_nobody_owes() -> None:
    engine = idle_group()
    assert engine.step() == []
    start_decode(engine, prompt(46, 5), 1)
    assert engine.step() == []
