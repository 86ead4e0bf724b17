"""Requests while the cable of a decode node's compute card is out: `python -m tests.testbed.partition`, in a process of
its own, whose sockets are in the testbed's namespaces. Prints what became of them as JSON."""

import asyncio
import json
import time

from dualpath_configs import load_cluster
from dualpath_jax.launch.local import LocalCluster
from dualpath_jax.rollout import Client, Generation
from dualpath_jax.testbed.network import NetworkTestbed
from tests.cluster.oracle import expected_tokens, random_prompt

TOKENS = 8
PROMPT_TOKENS = 600
PARTITION_S = 7.0
SPEC = {
    "engine.kind": "fake",
    "block_tokens": 16,
    "max_context_tokens": 1024,
    "host_buffer_blocks": 128,
    "engine.prefill_token_buckets": (256,),
    "engine.prefix_token_buckets": (1024,),
    "network.snic_bytes_per_s": 20e6,
    "network.cnic_bytes_per_s": 1.2e6,  # of two engines each: a prompt's KV takes a second
    "scheduling.transfer_deadline_s": 5.0,
    "scheduling.reservation_deadline_s": 5.0,
    "scheduling.max_attempts": 8,
    "scheduling.lease_s": 1.0,
}


async def generate(client: Client, prompt: list[int]) -> Generation:
    return await client.session().generate_async(prompt, TOKENS)


async def run(testbed: NetworkTestbed, cluster: LocalCluster) -> dict[str, object]:
    """One request before, some that the partition meets, and as many after it, which hit what those stored.

    Three at a time need nearly all slots of a host buffer: where one is left over from an attempt, they do not fit.
    """
    client = cluster.client
    prompts = [random_prompt(PROMPT_TOKENS, seed=seed) for seed in range(4)]
    before = await generate(client, prompts[0])
    running = [asyncio.create_task(generate(client, prompt)) for prompt in prompts[1:]]
    await asyncio.sleep(1.0)
    sent = testbed.counters()["prefill-0", "CNIC out, load and store"]
    testbed.set_link("decode-0", "cnic", up=False)
    out_at = time.monotonic()
    await asyncio.sleep(PARTITION_S)
    undone = sum(not task.done() for task in running)
    testbed.set_link("decode-0", "cnic", up=True)
    met = await asyncio.gather(*running)
    recovered_s = time.monotonic() - out_at - PARTITION_S
    await asyncio.to_thread(cluster.wait_until_stored)
    longer = [[*prompt, *one.tokens] for prompt, one in zip(prompts[1:], met, strict=True)]
    after = await asyncio.gather(*(generate(client, prompt) for prompt in longer))
    asked = {"before": (prompts[:1], [before]), "met": (prompts[1:], met), "after": (longer, after)}
    return {
        "sent_before_bytes": sent,
        "undone": undone,
        "recovered_s": recovered_s,
        "attempts": {name: [one.attempts for one in got] for name, (_, got) in asked.items()},
        "hit_tokens": [one.hit_tokens for one in after],
        "right": all(
            list(one.tokens) == expected_tokens(testbed.spec, prompt, TOKENS)
            for given, got in asked.values()
            for prompt, one in zip(given, got, strict=True)
        ),
    }


def main() -> None:
    spec = load_cluster("testbed_1p1d", SPEC)
    with (
        NetworkTestbed(spec) as testbed,
        testbed.inside(),
        LocalCluster(testbed.with_storage("kv"), place=testbed.place) as cluster,
    ):
        print(json.dumps(asyncio.run(run(testbed, cluster))))


if __name__ == "__main__":
    main()
