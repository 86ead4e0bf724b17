"""Which transport a node has: what the spec says, or for `auto`, what works here and at the peer."""

import asyncio
import logging
from collections.abc import Sequence
from typing import final

import grpc

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer.base import Failure, InboundGate, Lane, RegionHandle, RegionWrite, TransferError, Transport
from dualpath_jax.transfer.grpc_transport import GrpcTransport
from dualpath_jax.transfer.nixl_transport import NixlTransport
from dualpath_jax.transfer.regions import RegionTable

log = logging.getLogger(__name__)


def make_transport(network: NetworkSpec, *, bind: str, server: grpc.aio.Server) -> Transport:
    """The transport of a node, on its server; for `auto`, one line in the log says which and why.

    Raises OSError where `bind` is taken, and where `network.transport` demands NIXL and it does not work here.
    """
    specs = network.lanes.by_name
    lanes = {Lane[name.upper()]: spec.dscp for name, spec in specs.items()}
    levels = {Lane[name.upper()]: spec.service_level for name, spec in specs.items()}
    if network.transport == "grpc":
        return GrpcTransport(bind=bind, lane_dscp=lanes, server=server)
    regions = RegionTable()
    try:
        nixl = NixlTransport(
            bind=bind, lane_dscp=lanes, service_levels=levels, options=network.ucx, server=server, regions=regions
        )
    except (ImportError, RuntimeError) as error:
        if network.transport == "nixl":
            raise OSError(f"network.transport = 'nixl': {error}") from error
        log.info("transport grpc: %s", error)
        return GrpcTransport(bind=bind, lane_dscp=lanes, server=server)
    if network.transport == "nixl":
        return nixl
    log.info("transport nixl: it is installed and UCX starts; grpc with peers that have it not")
    beside = GrpcTransport(bind=nixl.address, lane_dscp=lanes, server=server, listen=False, regions=regions)
    return EitherTransport(nixl, beside)


@final
class EitherTransport(Transport):
    """Writes by NIXL to peers that offer it and by gRPC to the others, and takes both. Its parts share their regions,
    server and address, and are no one else's."""

    def __init__(self, nixl: NixlTransport, beside: GrpcTransport) -> None:
        self._nixl = nixl
        self._grpc = beside
        self._without: set[str] = set()
        """Peers that were found not to offer NIXL."""

    @property
    def address(self) -> str:
        return self._nixl.address

    def set_gate(self, gate: InboundGate) -> None:
        self._nixl.set_gate(gate)
        self._grpc.set_gate(gate)

    async def start(self) -> None:
        await self._nixl.start()
        await self._grpc.start()

    async def close(self) -> None:
        await asyncio.gather(self._nixl.close(), self._grpc.close())

    def register(self, segments: Sequence[memoryview], *, engine: int = 0) -> RegionHandle:
        return self._nixl.register(segments, engine=engine)

    async def deregister(self, handle: RegionHandle) -> None:
        await self._nixl.deregister(handle)  # what gRPC brings is refused once the region is out of the shared table

    async def write(self, peer: str, batch: Sequence[RegionWrite], *, lane: Lane, deadline_s: float) -> None:
        until_s = asyncio.get_running_loop().time() + deadline_s
        if peer not in self._without:
            try:
                await self._nixl.write(peer, batch, lane=lane, deadline_s=deadline_s)
                return
            except TransferError as error:
                if error.failure is not Failure.NOT_OFFERED:
                    raise
            log.info("transport grpc with %s: it does not offer NIXL", peer)
            self._without.add(peer)
        left_s = until_s - asyncio.get_running_loop().time()
        await self._grpc.write(peer, batch, lane=lane, deadline_s=left_s)
