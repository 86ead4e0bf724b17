"""What the owner of memory has granted to writers, and how it gets the memory back."""

import asyncio
from collections.abc import Callable, Iterable
from typing import final

from dualpath_jax.transfer.base import Lane
from dualpath_jax.transfer.nixl_agent import NixlAgent
from dualpath_jax.transfer.nixl_lane import SETTLE_S, NixlLane
from dualpath_jax.transfer.nixl_memory import address_of
from dualpath_jax.transfer.regions import Region
from dualpath_jax.transfer.tasks import settle

Pieces = list[tuple[Region, int, int]]
"""Region, offset and size of each piece."""


@final
class Grant:
    """A batch that its writer may post."""

    def __init__(self, pieces: Pieces, lane: NixlLane) -> None:
        self.pieces = pieces
        self.region_ids = {region.handle.region_id for region, _, _ in pieces}
        self.lane = lane
        self.left = False
        """Whether its writer will say no more of it."""
        self.unsure = False
        """Whether bytes of an earlier post may come late, so that its writer does not know when it is over."""
        self.agent: NixlAgent
        self.quiet: asyncio.Future[None]

    def posted_again(self) -> None:
        """Its writer failed to write to the agent. One that has ended lets nothing through any more."""
        self.unsure = self.unsure or not self.agent.closed

    def end(self) -> None:
        """Nothing of it can arrive any more."""
        if not self.quiet.done():
            self.quiet.set_result(None)


@final
class Grants:
    """All of one transport. A grant lasts until its writer says that nothing is under way, or its agent has ended."""

    def __init__(self, make_lane: Callable[[Lane, Callable[[NixlAgent], None]], NixlLane]) -> None:
        self._make_lane = make_lane
        self._lanes: dict[Lane, NixlLane] = {}
        self._grants: set[Grant] = set()

    def lane(self, lane: Lane) -> NixlLane:
        """The receiving agent of a lane, with its successors."""
        if lane not in self._lanes:
            self._lanes[lane] = self._make_lane(lane, self._agent_ended)
        return self._lanes[lane]

    def give(self, grant: Grant) -> list[int]:
        """Grant it, for the first time or anew; the pieces' addresses. Raises RefusedError where a region has gone."""
        segments, addresses = _places(grant.pieces)
        grant.agent = grant.lane.agent(segments)
        grant.quiet = asyncio.get_running_loop().create_future()
        self._grants.add(grant)
        return addresses

    def end(self, grant: Grant) -> None:
        """Its writer says that nothing of it is under way."""
        self._grants.discard(grant)
        grant.end()

    async def take_back(self, region_id: int) -> None:
        """Returns when nothing can arrive in a region; to be called after it has been closed."""
        grants = [grant for grant in self._grants if region_id in grant.region_ids]
        if grants:
            await settle([asyncio.create_task(_take_back(grants))])

    def close(self) -> None:
        """Take back everything at once."""
        for lane in self._lanes.values():
            lane.close()

    def _agent_ended(self, agent: NixlAgent) -> None:
        for grant in [grant for grant in self._grants if grant.agent is agent]:
            self.end(grant)


def _places(pieces: Pieces) -> tuple[list[memoryview], list[int]]:
    """The segments that the pieces lie in, and where each piece begins. Raises RefusedError where a region has gone."""
    segments, addresses = [], []
    last, start = None, 0
    for region, offset, size in pieces:
        segment, within = region.place(offset, size)
        if segment is not last:
            last, start = segment, address_of(segment) if segment else 0
            segments.append(segment)
        addresses.append(start + within)
    return segments, addresses


async def _take_back(grants: Iterable[Grant]) -> None:
    written = [grant.quiet for grant in grants if not grant.left]
    if written:
        await asyncio.wait(written, timeout=SETTLE_S)
    for grant in grants:
        if not grant.quiet.done():
            grant.lane.end(grant.agent)
