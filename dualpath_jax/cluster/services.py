"""What every node is made of: engine, device thread, store, host buffer, transport, traffic, and one gRPC server."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc

from dualpath_configs import ClusterSpec, StorageSpec
from dualpath_jax.cluster.device import DeviceThread
from dualpath_jax.cluster.peers import CHANNEL_OPTIONS
from dualpath_jax.engine.base import EngineGroup
from dualpath_jax.engine.host_buffers import HostArena
from dualpath_jax.transfer import TrafficManager, Transport, make_transport
from dualpath_jax.transfer.endpoint import OWN_PORT
from dualpath_storage import BlockStore, DramTier, KVLayout, StoreError, open_store

SERVER_OPTIONS = (*CHANNEL_OPTIONS, OWN_PORT)


@dataclass(frozen=True)
class NodeServices:
    """The parts that a node's loop works with."""

    spec: ClusterSpec
    engine: EngineGroup
    device: DeviceThread
    store: BlockStore
    """The cluster's, through the tier where there is one."""
    tier: DramTier | None
    arena: HostArena
    transport: Transport
    traffic: TrafficManager
    server: grpc.aio.Server


@contextlib.asynccontextmanager
async def node_services(spec: ClusterSpec, engine: EngineGroup, *, bind: str) -> AsyncIterator[NodeServices]:
    """Build the parts, in order, and take them down in reverse; the server is started by the node.

    Raises StoreError where the store cannot work, and OSError where `bind` is taken or the transport does not work.
    """
    async with contextlib.AsyncExitStack() as stack:
        device = DeviceThread()
        stack.callback(device.close)
        stack.push_async_callback(device.run, engine.close)
        store, tier = _open_tiers(spec.storage, engine.layout)
        stack.push_async_callback(store.close)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        transport = make_transport(spec.network, bind=bind, server=server)
        traffic = TrafficManager(
            transport,
            layout=engine.layout,
            network=spec.network,
            engines=engine.engines,
            free=spec.mode.free_transfers or not spec.network.emulated,
        )
        transport.set_gate(traffic.inbound_gate)
        stack.push_async_callback(traffic.close)
        stack.push_async_callback(transport.close)
        arena = HostArena(engine.layout, spec.host_buffer_blocks)
        yield NodeServices(spec, engine, device, store, tier, arena, transport, traffic, server)


def _open_tiers(storage: StorageSpec, layout: KVLayout) -> tuple[BlockStore, DramTier | None]:
    """What the node reads and writes, and the tier if that is one. Raises StoreError."""
    if storage.dram_bytes and storage.dram_bytes < layout.block_bytes:
        raise StoreError(
            f"storage.dram_bytes is {storage.dram_bytes}: expected 0, no DRAM tier, or at least one block of "
            f"{layout.block_bytes} bytes"
        )
    store = open_store(storage.url, layout)
    if not storage.dram_bytes:
        return store, None
    tier = DramTier(store, layout, capacity_bytes=storage.dram_bytes)
    return tier, tier
