"""Sessions on a cluster of processes: one after the other, many at once, from threads, and what goes wrong."""

import asyncio
import concurrent.futures
import itertools
import socket
import threading
import time

import numpy as np
import pytest

import dualpath_jax
from dualpath_jax.engine.base import Sampling
from dualpath_jax.rollout import Client, Generation
from tests.cluster.oracle import expected_tokens, random_prompt

STAGES = ("arrival", "assigned", "read_start", "read_end", "prefill_start", "first_token", "end")


def _reached(result: Generation) -> list[tuple[str, float]]:
    stages = [(name, getattr(result.timings, name)) for name in STAGES]
    return [(name, moment) for name, moment in stages if moment]


def test_a_session_keeps_its_history_and_its_stages_are_in_order(cluster):
    session, history, before = cluster.session(), [], time.time()
    for turn in range(4):
        append = random_prompt(21, seed=turn)
        result = session.generate(append, 9)
        history += [*append, *expected_tokens(cluster.spec, [*history, *append], 9)]
        assert session.history == tuple(history)
        assert result.prompt_tokens == len(history) - 9
        cluster.wait_until_stored()
        reached = _reached(result)
        assert [name for name, _ in reached] == [n for n in STAGES if turn or not n.startswith("read")]
        for (_, earlier), (_, later) in itertools.pairwise([("", before), *reached, ("", time.time())]):
            assert earlier <= later + 0.05, reached  # clocks of several processes
        assert len(result.logprobs) == 9
        assert result.logprobs == [choice.logprob for choice in result.choices]
        assert (result.prefill_node, result.decode_node, result.attempts) == ("prefill-0", "decode-0", 1)
        assert result.hit_tokens == 8 * (result.prefill_side_blocks + result.decode_side_blocks)


def test_all_arguments_arrive(cluster):
    prompt = random_prompt(30, seed=50)
    greedy = expected_tokens(cluster.spec, prompt, 8)
    drawn = cluster.session().generate(prompt, 8, temperature=0.7, seed=2**63)
    forced = cluster.session().generate(prompt, 3, forced_tokens=np.array([5, 6, 7]))
    stopped = cluster.session().generate(np.array(prompt), 8, stop_tokens=[greedy[3]])
    assert drawn.tokens == expected_tokens(cluster.spec, prompt, 8, Sampling(0.7, 2**63))
    assert forced.tokens == [5, 6, 7]
    assert forced.choices[0].top_tokens[0] == greedy[0]
    assert stopped.tokens == greedy[: greedy.index(greedy[3]) + 1]


def test_history_is_plain_integers(cluster):
    session = cluster.session()
    session.generate(np.array([1, 2, 3]), 2)
    assert all(type(token) is int for token in session.history)


def test_tenants_share_nothing(cluster):
    prompt = random_prompt(45, seed=51)
    cluster.session(tenant_salt="a").generate(prompt, 1)
    cluster.wait_until_stored()
    assert cluster.session(tenant_salt="b").generate(prompt, 1).hit_tokens == 0
    assert cluster.session(tenant_salt="a").generate(prompt, 1).hit_tokens == 40


def test_many_at_once_from_one_loop(cluster):
    prompts = [random_prompt(5 + 13 * i, seed=100 + i) for i in range(15)]

    async def all_at_once() -> list[Generation]:
        return await asyncio.gather(*(cluster.session().generate_async(prompt, 10) for prompt in prompts))

    for prompt, result in zip(prompts, asyncio.run(all_at_once()), strict=True):
        assert result.tokens == expected_tokens(cluster.spec, prompt, 10)


def test_one_client_from_several_threads_and_loops(cluster):
    prompts = [random_prompt(40 + i, seed=200 + i) for i in range(8)]

    def generate(index: int) -> Generation:
        session = cluster.session()
        if index % 2:
            return session.generate(prompts[index], 6)
        return asyncio.run(session.generate_async(prompts[index], 6))

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = list(threads.map(generate, range(8)))
    assert [result.tokens for result in results] == [expected_tokens(cluster.spec, prompt, 6) for prompt in prompts]


def test_a_turn_in_another_thread_is_refused_and_changes_nothing(cluster):
    session = cluster.session()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        first = threads.submit(session.generate, [1, 2, 3], 40)
        time.sleep(0.03)
        with pytest.raises(RuntimeError, match="a turn of this session is running: wait for it, or open another"):
            session.generate([4], 1)
        first.result(timeout=20)
    assert session.history == (1, 2, 3, *expected_tokens(cluster.spec, [1, 2, 3], 40))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 5), "the prompt is empty: expected 1 to 255 tokens"),
        (([1] * 256, 1), r"the prompt has 256 tokens: expected at most 255 \(max_context_tokens 256"),
        (([1, 97], 5), r"tokens\[1\] = 97: expected a token id in \[0, 97\)"),
        (([1, -1], 5), r"tokens\[1\] = -1: .* \(vocab_size 97, max_context_tokens 256\)"),
        (([1, 2], 0), r"max_tokens = 0: expected 1 to 254 \(max_context_tokens 256"),
        (([1, 2], 255), r"max_tokens = 255: expected 1 to 254"),
        (([1, 2], -3), r"max_tokens = -3: expected an integer from 0 .*max_context_tokens 256"),
    ],
)
def test_a_wrong_request_says_the_limits(cluster, arguments, text):
    session = cluster.session()
    with pytest.raises(dualpath_jax.InvalidRequest, match=text):
        session.generate(*arguments)
    with pytest.raises(dualpath_jax.InvalidRequest, match=text):
        asyncio.run(session.generate_async(*arguments))
    assert session.history == ()
    assert session.generate([1, 2], 1).tokens == expected_tokens(cluster.spec, [1, 2], 1)


def test_further_arguments_that_are_wrong(cluster):
    session = cluster.session()
    with pytest.raises(dualpath_jax.InvalidRequest, match=r"forced_tokens has 1 tokens: expected None or exactly"):
        session.generate([1], 2, forced_tokens=[3])
    with pytest.raises(dualpath_jax.InvalidRequest, match=r"temperature = nan: expected a finite number"):
        session.generate([1], 2, temperature=float("nan"))
    with pytest.raises(dualpath_jax.InvalidRequest, match=r"stop_tokens\[0\] = 97"):
        session.generate([1], 2, stop_tokens=[97])


def test_a_cancelled_turn_leaves_the_cluster_empty(cluster):
    async def cancelled() -> None:
        session = cluster.session()
        task = asyncio.create_task(session.generate_async(random_prompt(60, seed=300), 150))
        await asyncio.sleep(0.1)
        assert cluster.client.describe().running_requests == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.history == ()

    asyncio.run(cancelled())
    end = time.monotonic() + 5
    while cluster.client.describe().running_requests and time.monotonic() < end:
        time.sleep(0.02)
    assert cluster.client.describe().running_requests == 0


def test_closing_while_generating_ends_it_with_an_error(cluster, address):
    client = Client(address)
    started = threading.Barrier(3)

    def generate() -> None:
        started.wait()
        client.session().generate(random_prompt(60, seed=301), 150)

    async def generate_async() -> None:
        session = client.session()
        started.wait()
        await session.generate_async(random_prompt(60, seed=302), 150)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(generate), threads.submit(asyncio.run, generate_async())]
        started.wait()
        time.sleep(0.1)
        client.close()
        for future in waiting:
            with pytest.raises(RuntimeError, match=f"the client of the scheduler at {address} is closed: open another"):
                future.result(timeout=5)
    client.close()  # twice is fine


def test_a_closed_client_says_so(address):
    with Client(address) as client:
        session = client.session()
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="is closed"):
        session.generate([1], 1)
    with pytest.raises(RuntimeError, match="is closed"):
        asyncio.run(session.generate_async([1], 1))
    with pytest.raises(RuntimeError, match="is closed"):
        client.describe()
    assert threading.active_count() == before


def test_nobody_at_the_address_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Client(address) as client:
        with pytest.raises(dualpath_jax.SchedulerUnavailable, match=f"no scheduler answers at {address}"):
            client.describe()
        with pytest.raises(dualpath_jax.SchedulerUnavailable, match=rf"not ready after 0\.3 s: .*{address}"):
            client.wait_ready(1, 1, deadline_s=0.3)


def test_waiting_for_more_nodes_than_there_are_says_what_is_there(cluster):
    with pytest.raises(dualpath_jax.SchedulerUnavailable, match=r"1 of 2 prefill and 1 of 1 decode nodes"):
        cluster.client.wait_ready(2, 1, deadline_s=0.2)
