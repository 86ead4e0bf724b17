"""The life of a request on the fake engine, where agreement is equality."""

import asyncio

import pytest

from dualpath_configs import MODES
from dualpath_jax.engine.base import Sampling
from dualpath_scheduler import policy
from dualpath_scheduler.policy import ReadPlan
from dualpath_scheduler.service import InvalidRequest
from dualpath_scheduler.service import scheduler_pb2 as pb
from tests.cluster.harness import running, small_spec
from tests.cluster.oracle import expected_tokens, random_prompt


async def test_a_first_turn_agrees_with_the_oracle_and_reads_nothing(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompt = random_prompt(45)
        result = await cluster.generate(prompt, 20)
        read = [node.services.traffic.stats().snic_read_bytes for node in cluster.nodes.values()]
    assert result.tokens == expected_tokens(spec, prompt, 20)
    assert result.hit_tokens == 0
    assert read == [0, 0]


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_turns_of_a_session_hit_what_was_stored_and_agree(tmp_path, mode):
    spec = small_spec(tmp_path, mode=mode)
    async with running(spec) as cluster:
        history = []
        for turn in range(5):
            append = random_prompt(11 + turn, seed=turn)
            result = await cluster.generate([*history, *append], 9)
            assert result.tokens == expected_tokens(spec, [*history, *append], 9)
            # Stored: all full blocks of what has been fed, which is the history less its last token.
            stored = max(0, len(history) - 1) // 8
            assert result.hit_tokens == 8 * stored
            assert result.prefill_side_blocks + result.decode_side_blocks == stored
            history += [*append, *result.tokens]
            await cluster.quiet()
        if not spec.mode.dual_path:
            assert cluster.nodes["decode-0"].services.traffic.stats().snic_read_bytes == 0


@pytest.mark.parametrize("layers_per_group", [1, 2, 3])
@pytest.mark.parametrize("own", range(6))
async def test_every_split_of_the_reads_agrees(tmp_path, monkeypatch, own, layers_per_group):
    def split(snapshot):
        mine = min(own, snapshot.hit_blocks)
        return ReadPlan(mine, snapshot.hit_blocks - mine)

    monkeypatch.setattr(policy, "read_plan_for", lambda *_: split)
    spec = small_spec(tmp_path, scheduling__layers_per_group=layers_per_group)
    async with running(spec) as cluster:
        prompt = random_prompt(45)
        await cluster.generate(prompt, 2)
        await cluster.quiet()
        result = await cluster.generate(prompt, 5)
        read = {name: node.services.traffic.stats().snic_read_bytes for name, node in cluster.nodes.items()}
        block_bytes = cluster.nodes["prefill-0"].services.engine.layout.block_bytes
    assert result.tokens == expected_tokens(spec, prompt, 5)
    assert read == {"prefill-0": own * block_bytes, "decode-0": (5 - own) * block_bytes}


async def test_many_requests_at_once_agree(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompts = [random_prompt(5 + 17 * i % 150, seed=i) for i in range(12)]
        results = await asyncio.gather(*(cluster.generate(prompt, 12) for prompt in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == expected_tokens(spec, prompt, 12)


async def test_a_prompt_longer_than_a_pass_is_cut_into_chunks(tmp_path):
    spec = small_spec(tmp_path, engine__prefill_token_buckets=(16,))
    async with running(spec) as cluster:
        prompt = random_prompt(150)
        first = await cluster.generate(prompt, 6)
        await cluster.quiet()
        second = await cluster.generate([*prompt, *first.tokens, *random_prompt(60, seed=1)], 6)
    assert first.tokens == expected_tokens(spec, prompt, 6)
    assert second.hit_tokens == 152
    assert second.tokens == expected_tokens(spec, [*prompt, *first.tokens, *random_prompt(60, seed=1)], 6)


async def test_forced_tokens_sampling_and_stop_tokens(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompt = random_prompt(20)
        forced = await cluster.generate(prompt, 4, forced_tokens=[5, 6, 7, 8])
        drawn = await cluster.generate(prompt, 6, sampling=pb.Sampling(temperature=1.0, seed=3))
        greedy = expected_tokens(spec, prompt, 6)
        stopped = await cluster.generate(prompt, 6, stop_tokens=[greedy[2]])
        first = await cluster.generate(prompt, 6, stop_tokens=[greedy[0]])
        one = await cluster.generate(prompt, 1)
    assert forced.tokens == [5, 6, 7, 8]
    assert forced.choices[0].top_tokens[0] == greedy[0]
    assert forced.choices[1].top_tokens[0] == expected_tokens(spec, [*prompt, 5], 1)[0]
    assert drawn.tokens == expected_tokens(spec, prompt, 6, Sampling(1.0, 3))
    assert stopped.tokens == greedy[: greedy.index(greedy[2]) + 1]
    assert first.tokens == greedy[:1]
    assert one.tokens == greedy[:1]


async def test_the_smallest_host_buffer_still_finishes_every_request(tmp_path):
    spec = small_spec(tmp_path, host_buffer_blocks=32, engine__decode_pages=32, engine__decode_slots=2)
    async with running(spec) as cluster:
        prompts = [random_prompt(100 + 12 * i, seed=i) for i in range(10)]
        results = await asyncio.gather(*(cluster.generate(prompt, 20) for prompt in prompts))
        await cluster.quiet()
        again = await asyncio.gather(*(cluster.generate(prompt, 20) for prompt in prompts))
        await cluster.quiet()
        stats = [node.services.arena.stats for node in cluster.nodes.values()]
    for prompt, result, second in zip(prompts, results, again, strict=True):
        assert result.tokens == second.tokens == expected_tokens(spec, prompt, 20)
        assert second.hit_tokens == (len(prompt) - 1) // 8 * 8
    assert [(s.free, s.reserved, s.quarantined) for s in stats] == [(32, 0, 0)] * 2


async def test_tenants_share_nothing_unless_they_ask(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        prompt = random_prompt(45)
        await cluster.generate(prompt, 2, tenant_salt="a")
        await cluster.quiet()
        other = await cluster.generate(prompt, 2, tenant_salt="b")
        same = await cluster.generate(prompt, 2, tenant_salt="a")
    assert (other.hit_tokens, same.hit_tokens) == (0, 40)


async def test_a_wrong_request_is_an_error_to_its_caller_alone(tmp_path):
    spec = small_spec(tmp_path)
    async with running(spec) as cluster:
        good = asyncio.create_task(cluster.generate(random_prompt(60), 30))
        with pytest.raises(InvalidRequest, match="empty"):
            await cluster.generate([], 5)
        with pytest.raises(InvalidRequest, match="97"):
            await cluster.generate([1, 97], 5)
        with pytest.raises(InvalidRequest, match="256"):
            await cluster.generate([1] * 257, 5)
        with pytest.raises(InvalidRequest, match="max_tokens"):
            await cluster.generate([1, 2], 0)
        with pytest.raises(InvalidRequest, match="256"):
            await cluster.generate([1, 2], 255)
        assert (await good).tokens == expected_tokens(spec, random_prompt(60), 30)


async def test_an_attempt_that_is_cancelled_before_it_began_is_forgotten(tmp_path):
    async with running(small_spec(tmp_path)) as cluster:
        for node in cluster.nodes.values():
            node._accept(pb.Assignment(serial=1, request_id="x", attempt=1, tokens=[1, 2], max_tokens=2))
            node._cancel(pb.Cancellation(serial=2, request_id="x", attempt=1))
        await asyncio.sleep(0.05)
        assert [len(node.jobs) for node in cluster.nodes.values()] == [0, 0]
