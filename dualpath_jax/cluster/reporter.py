"""Gathers what a node has to say and sends it to the scheduler, one report under way at a time.

While a report is under way the next one gathers, so a slow scheduler gets fewer and larger reports, and a quiet node
sends one now and then to keep its lease.
"""

import asyncio
import contextlib
from collections.abc import Callable

from dualpath_jax.cluster.jobs import Job
from dualpath_jax.engine.base import TokenChoice
from dualpath_scheduler.service import NodeClient
from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_storage import DramTier

MOST_CHANGES = 4096
"""Most keys of one report that came into memory or left it; the rest goes with the next one."""


def token_message(choice: TokenChoice) -> pb.Token:
    """A generated position as the protocol writes it."""
    return pb.Token(
        token=choice.token,
        logprob=choice.logprob,
        top_token_1=choice.top_tokens[0],
        top_token_2=choice.top_tokens[1],
        top_logprob_1=choice.top_logprobs[0],
        top_logprob_2=choice.top_logprobs[1],
    )


class Reporter:
    """The outbox of a node. Changes of the DRAM tier go with reports that are sent anyway."""

    def __init__(
        self,
        client: NodeClient,
        queues: Callable[[], pb.QueueReport],
        *,
        heartbeat_s: float,
        tier: DramTier | None = None,
    ) -> None:
        self._client = client
        self._queues = queues
        self._tier = tier
        self._heartbeat_s = heartbeat_s
        self._progress: list[pb.Progress] = []
        self._published: list[pb.Published] = []
        self._lost: list[bytes] = []
        self._full_writes = 0
        self._sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()

    def progress(self, job: Job, **fields: object) -> None:
        """Say what became of a job; `fields` are those of `Progress`."""
        message = pb.Progress(request_id=job.assignment.request_id, attempt=job.assignment.attempt, **fields)  # type: ignore[arg-type]
        self._progress.append(message)
        self._wake.set()

    def published(self, key: bytes, parent: bytes) -> None:
        """A block is durable."""
        self._published.append(pb.Published(key=key, parent=parent))
        self._wake.set()

    async def delivered(self) -> None:
        """Wait until the scheduler has what was said so far."""
        self._wake.set()
        await asyncio.shield(self._sent)

    def lost(self, key: bytes) -> None:
        """A block that the index promised did not load."""
        self._lost.append(key)
        self._wake.set()

    def full(self) -> None:
        """A block found no room in the store."""
        self._full_writes += 1
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled; whoever waits for a delivery then is cancelled as well."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._heartbeat_s):
                        await self._wake.wait()
                await self._send()
        finally:
            self._sent.cancel()

    async def _send(self) -> None:
        self._wake.clear()
        progress, published, lost = self._progress, self._published, self._lost
        self._progress, self._published, self._lost = [], [], []
        full_writes, self._full_writes = self._full_writes, 0
        residents = self._tier.take_changes(MOST_CHANGES) if self._tier is not None else ([], [])
        sent, self._sent = self._sent, asyncio.get_running_loop().create_future()
        try:
            await self._client.report(
                self._queues(),
                progress=progress,
                published=published,
                lost=lost,
                residents=residents,
                full_writes=full_writes,
            )
            sent.set_result(None)
        finally:
            sent.cancel()
