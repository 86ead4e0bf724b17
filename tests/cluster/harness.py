"""A whole cluster in one process and one event loop, on the fake engine or the Flax one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from dualpath_configs import ClusterSpec, load_cluster
from dualpath_jax.cluster.decode_node import DecodeNode
from dualpath_jax.cluster.node import Node
from dualpath_jax.cluster.prefill_node import PrefillNode
from dualpath_jax.cluster.services import node_services
from dualpath_jax.engine.build import build_engine
from dualpath_jax.rollout.generation import Generation, generation, token_choice
from dualpath_scheduler.service import SchedulerClient, SchedulerServer
from dualpath_scheduler.service import scheduler_pb2 as pb

SMALL = {
    "engine.kind": "fake",
    "model.vocab_size": 97,
    "model.num_hidden_layers": 3,
    "model.first_k_dense_replace": 1,
    "model.kv_lora_rank": 8,
    "model.qk_rope_head_dim": 2,
    "block_tokens": 8,
    "max_context_tokens": 256,
    "host_buffer_blocks": 64,
    "engine.prefill_token_buckets": (64,),
    "engine.prefix_token_buckets": (256,),
    "engine.shard_tokens": 16,
    "engine.decode_pages": 64,
    "engine.decode_slots": 4,
    "network.snic_bytes_per_s": None,
    "network.cnic_bytes_per_s": None,
    "scheduling.layers_per_group": 1,
    "scheduling.lease_s": 2.0,
}


def small_spec(folder: Path, **overrides: object) -> ClusterSpec:
    """A tiny spec on the fake engine; keyword names spell dotted keys with `__`."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_cluster("local_1p1d", {**SMALL, "storage.url": f"file://{folder / 'kv'}", **keys})


@dataclass
class Cluster:
    """The running parts, and a client."""

    spec: ClusterSpec
    server: SchedulerServer
    client: SchedulerClient
    nodes: dict[str, Node]
    tasks: dict[str, "asyncio.Task[None]"]
    address: str

    async def generate(self, tokens: list[int], max_tokens: int, **fields: object) -> Generation:
        request = pb.GenerateRequest(tokens=tokens, max_tokens=max_tokens, **fields)
        choices, finished = [], pb.Finished()
        async for event in self.client.generate(request, deadline_s=60):
            choices += [token_choice(token) for token in event.tokens]
            if event.HasField("finished"):
                finished = event.finished
        return generation(choices, finished)

    async def quiet(self) -> None:
        """Wait until every block is stored and every slot is free."""
        async with asyncio.timeout(20):
            while any(node.stats.pending_blocks or len(node.jobs) for node in self.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)


async def _run_node(
    kind: type[Node], spec: ClusterSpec, node_id: str, scheduler: str, started: "dict[str, Node]"
) -> None:
    role = "prefill" if kind is PrefillNode else "decode"
    engine = await asyncio.to_thread(build_engine, spec, role)  # weights take a while, and the scheduler serves here
    async with node_services(spec, engine, bind="127.0.0.1:0") as services:
        node = kind(services, node_id=node_id, scheduler=scheduler)
        started[node_id] = node
        await node.run()


@contextlib.asynccontextmanager
async def running(spec: ClusterSpec) -> AsyncIterator[Cluster]:
    """Start the scheduler and all nodes of `spec`; stop them in the end, and fail if a node had failed."""
    server = SchedulerServer(spec, bind="127.0.0.1:0")
    address = await server.start()
    client = SchedulerClient(address)
    nodes: dict[str, Node] = {}
    kinds = {f"prefill-{i}": PrefillNode for i in range(spec.prefill_nodes)}
    kinds |= {f"decode-{i}": DecodeNode for i in range(spec.decode_nodes)}
    tasks = {
        name: asyncio.create_task(_run_node(kind, spec, name, address, nodes), name=name)
        for name, kind in kinds.items()
    }
    try:
        ready = asyncio.create_task(client.wait_ready(spec.prefill_nodes, spec.decode_nodes, deadline_s=60))
        await asyncio.wait([ready, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks.values():
            if task.done():
                task.result()
        await ready
        yield Cluster(spec, server, client, nodes, tasks, address)
    finally:
        await client.close()
        for task in tasks.values():
            task.cancel()
        ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        await server.close()
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []
