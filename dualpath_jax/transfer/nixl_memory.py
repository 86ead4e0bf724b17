"""What memory NIXL is told of: not the many small views of a transfer, but the few large objects that they lie in."""

import ctypes
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

MOST_EXTENTS = 64
"""Extents that an agent may know; one that would need more is replaced, and its successor learns what is still used."""


class MemoryConflictError(Exception):
    """Peers may still know other memory at this place, or too much of it: only a new agent can take it."""


@final
@dataclass(frozen=True)
class Extent:
    """Memory `[address, address + size_bytes)` of one object."""

    address: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.address + self.size_bytes

    def contains(self, other: "Extent") -> bool:
        """Whether all of the other lies in it."""
        return self.address <= other.address and other.end <= self.end

    def overlaps(self, other: "Extent") -> bool:
        """Whether they share a byte."""
        return self.address < other.end and other.address < self.end


def address_of(view: memoryview) -> int:
    """Where a view that is not empty begins. Raises ValueError where it was released."""
    if view.readonly:
        address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        return address
    return ctypes.addressof(ctypes.c_char.from_buffer(view))  # five times as fast as by way of an array


@final
class KnownMemory:
    """The memory that one agent knows.

    An object that has gone is forgotten, so that no memory lives longer for having been registered once; but what peers
    were told cannot be taken back from them.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[Extent, weakref.ref[object] | object]] = {}  # by `id`
        self._told: set[Extent] = set()

    def tell(self) -> None:
        """Peers know all of it from now on."""
        self._told.update(extent for extent, _ in self._owners.values())

    def learn(self, views: Iterable[memoryview]) -> tuple[list[Extent], list[Extent]]:
        """The extents to register for these views, and those to deregister before. Raises MemoryConflictError."""
        missing: dict[int, tuple[Extent, object]] = {}
        last: object = None
        for view in views:
            if view.obj is last:  # neighbours mostly lie in one object
                continue
            last = view.obj
            owner = _owner(view)
            if id(owner) not in missing and not self._knows(owner):
                missing[id(owner)] = _extent(owner), owner
        if not missing:
            return [], []
        dropped = self._drop_gone()
        if self._owners and len(self._owners) + len(missing) > MOST_EXTENTS:
            raise MemoryConflictError
        new = []
        living = {extent for extent, _ in self._owners.values()}
        for key, (extent, owner) in missing.items():
            around = next((other for other in living if other.contains(extent)), None)
            if around is None:
                if any(extent.overlaps(other) for other in self._told):
                    raise MemoryConflictError
                new.append(extent)
                living.add(extent)
            self._owners[key] = around or extent, _reference(owner)
        return new, dropped

    def _drop_gone(self) -> list[Extent]:
        """Forget the objects that have gone; the extents that no other object lies in."""
        gone = [key for key, (_, owner) in self._owners.items() if isinstance(owner, weakref.ref) and owner() is None]
        dropped = {self._owners.pop(key)[0] for key in gone}
        return [*dropped.difference(extent for extent, _ in self._owners.values())]

    def _knows(self, owner: object) -> bool:
        known = self._owners.get(id(owner))
        if known is None:
            return False
        reference = known[1]
        return reference is owner or (isinstance(reference, weakref.ref) and reference() is owner)


def _owner(view: memoryview) -> object:
    """Arrays are followed to the one that they are views of, so that an arena is one extent whatever is cut from it."""
    owner: object = view.obj
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner


def _extent(owner: object) -> Extent:
    """All of its memory. Raises ValueError where that has holes."""
    if isinstance(owner, np.ndarray) and owner.flags.forc:
        return Extent(owner.__array_interface__["data"][0], owner.nbytes)
    flat = np.frombuffer(owner, np.uint8)  # type: ignore[call-overload]
    return Extent(flat.__array_interface__["data"][0], flat.nbytes)


def _reference(owner: object) -> "weakref.ref[object] | object":
    try:
        return weakref.ref(owner)
    except TypeError:
        return owner
