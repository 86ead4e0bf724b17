"""A store whose device misbehaves, for tests: faults by rate and seed, beneath the verification."""

import dataclasses
import errno
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import xxhash

from dualpath_storage.medium import Medium, Staged
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.store import StoreError


@dataclasses.dataclass(frozen=True)
class Faults:
    """How often each fault strikes a block's read or write, from 0 (never) to 1 (always).

    Whether it does depends on the seed, the key, and how many reads (writes) of that key came before in this store.
    Several faults may strike at once.
    """

    delay: float = 0.0
    """Reads and writes take `delay_s` longer."""
    hang: float = 0.0
    """Reads and writes go on until `overrun_s` after their deadline, and then still touch the caller's buffer."""
    error: float = 0.0
    """Reads and writes fail with EIO."""
    truncate: float = 0.0
    """Reads end early."""
    flip: float = 0.0
    """Reads have one bit flipped."""
    swap: float = 0.0
    """Reads return another block's bytes, where another one was read or written before."""
    lose: float = 0.0
    """Writes are acknowledged and never happen."""
    delay_s: float = 0.02
    overrun_s: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _RATES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"fault rate {name} is {getattr(self, name)}: expected 0 to 1")
        if self.delay_s < 0 or self.overrun_s < 0:
            raise ValueError(f"delay_s is {self.delay_s} and overrun_s {self.overrun_s}: expected 0 or more")


_RATES = ("delay", "hang", "error", "truncate", "flip", "swap", "lose")


def parse_faults(pairs: Iterable[tuple[str, str]]) -> Faults:
    """`Faults` from the query of a URL. Raises StoreError for an unknown name or a bad value."""
    kinds = {field.name: int if field.name == "seed" else float for field in dataclasses.fields(Faults)}
    values: dict[str, float] = {}
    for name, text in pairs:
        if name not in kinds:
            raise StoreError(f"fault {name!r} in a store URL: expected one of {', '.join(kinds)}")
        try:
            values[name] = kinds[name](text)
        except ValueError:
            raise StoreError(f"fault {name}={text!r} in a store URL: expected a number") from None
    try:
        return Faults(**values)  # type: ignore[arg-type]
    except ValueError as error:
        raise StoreError(f"store URL: {error}") from None


@final
class FaultyMedium(Medium):
    """Stands between a store and its medium. Probes, scans and deletes pass unharmed."""

    def __init__(self, inner: Medium, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, bytes], int] = {}
        self._last_keys: dict[bytes, None] = {}

    def read(
        self, key: bytes, header: bytearray, payload: memoryview, *, deadline_at: float, skip_bytes: int = 0
    ) -> int:
        dice = self._dice("read", key)
        self._disturb(dice, deadline_at)
        source = self._another(key) if dice.strikes("swap") else key
        seen = self._inner.read(source, header, payload, deadline_at=deadline_at, skip_bytes=skip_bytes)
        if dice.strikes("truncate"):
            seen = dice.number("truncate at", seen)
            header[seen:] = bytes(len(header) - min(seen, len(header)))
            rest = payload[max(0, seen - len(header) - skip_bytes) :]
            rest[:] = bytes(len(rest))
        if dice.strikes("flip"):
            bit = dice.number("flip at", 8 * (len(header) + len(payload)))
            _flip(header, payload, bit)
        return seen

    def stage(self, key: bytes, header: bytes, payload: memoryview, *, deadline_at: float) -> Staged:
        dice = self._dice("write", key)
        self._disturb(dice, deadline_at)
        staged = self._inner.stage(key, header, payload, deadline_at=deadline_at)
        if dice.strikes("lose"):
            self._inner.discard([staged])
            return Staged(key, None)
        return staged

    def commit(self, staged: Sequence[Staged], *, deadline_at: float) -> list[OSError | None]:
        return self._inner.commit(staged, deadline_at=deadline_at)

    def discard(self, staged: Sequence[Staged]) -> None:
        self._inner.discard(staged)

    def peek(self, key: bytes, size_bytes: int) -> bytes:
        return self._inner.peek(key, size_bytes)

    def contains(self, key: bytes) -> bool:
        return self._inner.contains(key)

    def delete(self, key: bytes) -> None:
        self._inner.delete(key)

    def keys(self) -> Iterator[list[bytes]]:
        return self._inner.keys()

    def close(self) -> None:
        self._inner.close()

    def _dice(self, operation: str, key: bytes) -> "_Dice":
        with self._lock:
            count = self._counts[operation, key] = self._counts.get((operation, key), -1) + 1
            self._last_keys.pop(key, None)
            self._last_keys[key] = None
            if len(self._last_keys) > 2:
                del self._last_keys[next(iter(self._last_keys))]
        return _Dice(self._faults, f"{operation} {key.hex()} {count}")

    def _another(self, key: bytes) -> bytes:
        with self._lock:
            return next((other for other in self._last_keys if other != key), key)

    def _disturb(self, dice: "_Dice", deadline_at: float) -> None:
        if dice.strikes("delay"):
            time.sleep(self._faults.delay_s)
        if dice.strikes("hang"):
            time.sleep(max(0.0, deadline_at - time.monotonic()) + self._faults.overrun_s)
        if dice.strikes("error"):
            raise OSError(errno.EIO, "injected: the device reports an error")


@final
class FaultyStore(MediumStore):
    """`inner` as it would be on a bad device. Owns `inner`: `close` closes it."""

    def __init__(self, inner: MediumStore, faults: Faults) -> None:
        super().__init__(FaultyMedium(inner.medium, faults), inner.layout, threads=inner.threads)
        self._inner = inner
        self._faults = faults

    @property
    def url(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in dataclasses.asdict(self._faults).items() if value)
        return f"faulty+{self._inner.url}?{query}"

    async def close(self) -> None:
        await super().close()
        await self._inner.close()


@final
class _Dice:
    """Decisions about one operation, the same in every run with the same seed."""

    def __init__(self, faults: Faults, operation: str) -> None:
        self._faults = faults
        self._operation = operation

    def strikes(self, fault: str) -> bool:
        rate = getattr(self._faults, fault)
        return rate > 0 and self._draw(fault) < rate * 2**64

    def number(self, purpose: str, below: int) -> int:
        return self._draw(purpose) % below if below else 0

    def _draw(self, purpose: str) -> int:
        return xxhash.xxh3_64_intdigest(f"{self._faults.seed} {self._operation} {purpose}".encode())


def _flip(header: bytearray, payload: memoryview, bit: int) -> None:
    position, mask = bit // 8, 1 << bit % 8
    if position < len(header):
        header[position] ^= mask
    else:
        payload[position - len(header)] ^= mask
