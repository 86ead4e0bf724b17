"""Processes whose KV crosses by NIXL: two of them are killed, and the others go on and end well."""

import asyncio

import dualpath_jax
from tests.cluster.harness import small_spec
from tests.cluster.oracle import expected_tokens, random_prompt
from tests.transfer.conftest import needs_nixl

pytestmark = needs_nixl


def test_nodes_that_are_killed_in_the_middle_cost_no_token(tmp_path):
    spec = small_spec(
        tmp_path,
        network__transport="auto",
        network__cnic_bytes_per_s=2e5,
        prefill_nodes=2,
        decode_nodes=2,
        engine__fake_seconds_per_token=0.005,
        scheduling__lease_s=1.0,
    )
    prompts = [random_prompt(90, seed=seed) for seed in range(6)]

    async def killed_meanwhile(cluster):
        running = [asyncio.create_task(cluster.session().generate_async(prompt, 20)) for prompt in prompts]
        await asyncio.sleep(0.3)
        cluster.kill("prefill-0")
        await asyncio.sleep(0.3)
        cluster.kill("decode-1")
        return await asyncio.gather(*running)

    with dualpath_jax.LocalCluster(spec) as cluster:
        logs = {name: process.log for name, process in cluster.processes.items() if name != "scheduler"}
        results = asyncio.run(killed_meanwhile(cluster))
        said = {name: log.read_text() for name, log in logs.items()}
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == expected_tokens(spec, prompt, 20)
    assert all("transport nixl: it is installed and UCX starts" in text for text in said.values()), said
    assert not any("transport grpc" in text for text in said.values()), said
