"""Copy the blocks of one store to another, of whatever kind: what is there is skipped, so a copy can be taken up."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tqdm import tqdm

from dualpath_storage.block_format import BlockHeader
from dualpath_storage.medium import Medium, Staged
from dualpath_storage.store import StoreError
from dualpath_storage.tool.blocks import DEADLINE_S, BlockReader, Damage, header_of, in_threads, keys_of

_COMMIT_TOGETHER = 64


@dataclass
class Copied:
    """What was copied, what was there already, and what is damaged in the source, so that it was left out."""

    blocks: int = 0
    size_bytes: int = 0
    skipped: int = 0
    damaged: list[Damage] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        damaged = [bad.as_json() for bad in self.damaged]
        return {"blocks": self.blocks, "bytes": self.size_bytes, "skipped": self.skipped, "damaged": damaged}


def copy(source: Medium, target: Medium) -> Copied:
    """Every block is verified on the way, and durable in the target before it counts as copied.

    A block is there already where the target has the same header under its key. Raises StoreError where the target
    takes no more, and leaves nothing that is not published; what has been copied by then stays.
    """
    keys = keys_of(source)
    run = _Copy(source, target)
    try:
        with tqdm(total=len(keys), desc="copy", unit="block", disable=None) as bar, in_threads(run.stage, keys) as done:
            for outcome in done:
                bar.update()
                run.take(outcome)
        run.commit()
    finally:
        target.discard([staged for staged, _ in run.unpublished.values()])
    return run.copied


@final
class _Copy:
    """One copy: `stage` runs in threads, the rest in the caller's."""

    def __init__(self, source: Medium, target: Medium) -> None:
        self.copied = Copied()
        self.unpublished: dict[bytes, tuple[Staged, int]] = {}
        self._source = source
        self._target = target
        self._reader = BlockReader(source)
        self._waiting: list[bytes] = []

    def stage(self, key: bytes) -> Damage | OSError | bytes | None:
        """The key, once its block is staged; None: it is there already, or gone from the source."""
        header = header_of(self._source, key)
        if not isinstance(header, BlockHeader):
            return header
        if header_of(self._target, key) == header:
            return None
        block = self._reader.read(key)
        if block is None or isinstance(block, Damage):
            return block
        try:
            deadline_at = time.monotonic() + DEADLINE_S
            staged = self._target.stage(key, block.raw_header, block.payload, deadline_at=deadline_at)
        except OSError as error:
            return error
        self.unpublished[key] = staged, block.size_bytes
        return key

    def take(self, outcome: Damage | OSError | bytes | None) -> None:
        if isinstance(outcome, OSError):
            raise _refused(outcome)
        if isinstance(outcome, Damage):
            self.copied.damaged.append(outcome)
        elif outcome is None:
            self.copied.skipped += 1
        else:
            self._waiting.append(outcome)
            if len(self._waiting) >= _COMMIT_TOGETHER:
                self.commit()

    def commit(self) -> None:
        """Publish what was taken. Raises StoreError."""
        blocks = [self.unpublished[key] for key in self._waiting]
        outcomes: Sequence[OSError | None]
        try:
            outcomes = self._target.commit([staged for staged, _ in blocks], deadline_at=time.monotonic() + DEADLINE_S)
        except OSError as error:
            raise _refused(error) from error
        for key, (_, size_bytes), outcome in zip(self._waiting, blocks, outcomes, strict=True):
            if outcome is not None:
                raise _refused(outcome) from outcome
            del self.unpublished[key]
            self.copied.blocks += 1
            self.copied.size_bytes += size_bytes
        self._waiting.clear()


def _refused(error: OSError) -> StoreError:
    return StoreError(f"the target takes no more: {error}; make room there and copy again, which goes on from here")
