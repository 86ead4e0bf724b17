"""What transports have in common whose peers meet on gRPC streams, whatever then carries the bytes."""

from collections.abc import Sequence
from typing import Any

from dualpath_jax.transfer.base import InboundGate, Lane, RegionHandle, RegionWrite, Transport
from dualpath_jax.transfer.endpoint import Endpoint
from dualpath_jax.transfer.regions import RegionTable


class StreamTransport(Transport):
    """A transport on an endpoint, with a table of its registered regions (None: one of its own); abstract, since what
    it takes to deregister depends on what carries the bytes."""

    def __init__(self, endpoint: Endpoint[Any], regions: RegionTable | None, gate: InboundGate | None) -> None:
        self._endpoint = endpoint
        self._regions = regions if regions is not None else RegionTable()
        self._gate = gate

    @property
    def address(self) -> str:
        return self._endpoint.address

    def set_gate(self, gate: InboundGate) -> None:
        self._gate = gate

    async def start(self) -> None:
        await self._endpoint.start()

    async def close(self) -> None:
        self._regions.clear()
        await self._endpoint.close()

    def register(self, segments: Sequence[memoryview], *, engine: int = 0) -> RegionHandle:
        return self._regions.register(segments, engine)

    async def write(self, peer: str, batch: Sequence[RegionWrite], *, lane: Lane, deadline_s: float) -> None:
        pieces = [write for write in batch if len(write.source)]
        if pieces:
            await self._endpoint.stream(peer, lane).write(pieces, deadline_s)
