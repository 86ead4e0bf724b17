"""The scheduler's own handle of the cluster's store: what is stored at the start, and deleting what is evicted."""

import asyncio
import logging
import time
from typing import final

from dualpath_configs import ClusterSpec
from dualpath_scheduler.service.kv_layout import layout_of
from dualpath_scheduler.service.state import SchedulerState
from dualpath_storage.index import PrefixIndex
from dualpath_storage.open import open_store
from dualpath_storage.store import BlockStore, StoreError

log = logging.getLogger(__name__)

REBUILD_DEADLINE_S = 120.0
DELETE_BATCH = 256
"""Blocks of one deletion, so that a slow store never has more than these half done."""

_LOOK_S = 0.1
_REST_S = 5.0


@final
class StoreKeeper:
    """Opens the store where the spec names one, and keeps it open where blocks may have to be evicted."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._url = spec.storage.url
        self._layout = layout_of(spec)
        self._evicts = spec.storage.capacity_bytes is not None or spec.storage.time_to_live_s is not None
        self._store: BlockStore | None = None

    async def rebuild(self) -> PrefixIndex:
        """The index of what is stored. Raises StoreError where the store cannot be opened."""
        index = PrefixIndex()
        if not self._url:
            return index
        self._store = open_store(self._url, self._layout)
        try:
            async with asyncio.timeout(REBUILD_DEADLINE_S):
                blocks = await index.rebuild(self._store)
            log.info("%s holds %d blocks", self._url, blocks)
        except TimeoutError:
            log.warning(
                "%s was not scanned within %g s: its first %d blocks count as stored, the others are computed again",
                self._url,
                REBUILD_DEADLINE_S,
                len(index),
            )
        finally:
            if not self._evicts:
                await self.close()
        return index

    async def evict_forever(self, state: SchedulerState) -> None:
        """Deletes what the state gives up, in the background, until cancelled."""
        while self._store is not None:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._evict(self._store, state)
                await self._settle(self._store, state)
            except StoreError as error:
                log.warning("eviction has to wait: %s", error)
                await asyncio.sleep(_REST_S)
            except Exception:
                log.exception("an eviction failed")

    async def _evict(self, store: BlockStore, state: SchedulerState) -> None:
        """Raises StoreError where the store does not do it; what is left then is in the index again."""
        blocks = state.evict(time.monotonic())
        if blocks:
            log.info("%d blocks are evicted", len(blocks))
        try:
            while blocks:
                batch = blocks[:DELETE_BATCH]
                await store.delete([block.key for block in batch])
                state.evicted(batch, time.monotonic())
                blocks = blocks[DELETE_BATCH:]
        finally:
            state.not_evicted(blocks)

    async def _settle(self, store: BlockStore, state: SchedulerState) -> None:
        doubts = state.doubts()
        if doubts:
            present = await store.contains([block.key for block in doubts])
            state.settle([block for block, there in zip(doubts, present, strict=True) if there])

    async def close(self) -> None:
        """Lets the store go. Safe to call twice."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
