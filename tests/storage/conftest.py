import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dualpath_storage import Faults, FaultyStore, KVLayout, MemoryStore, PosixStore, StoreError
from dualpath_storage.medium_store import MediumStore
from tests.storage.blocks import LAYOUT

OpenAgain = Callable[..., MediumStore]


@pytest.fixture(params=["posix", "direct", "memory", "faulty"])
async def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenAgain]:
    """Opens the same store, as often as asked and for any layout; closes them all."""
    name = secrets.token_hex(4)
    opened: list[MediumStore] = []

    def open_one(layout: KVLayout = LAYOUT) -> MediumStore:
        store: MediumStore
        if request.param == "memory":
            store = MemoryStore(layout, name=name)
        else:
            try:
                store = PosixStore(tmp_path / "store", layout, direct=request.param == "direct")
            except StoreError as error:
                pytest.skip(f"{tmp_path} is on a file system without unbuffered reads: {error}")
        opened.append(FaultyStore(store, Faults()) if request.param == "faulty" else store)
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_again: OpenAgain) -> MediumStore:
    """Each store in turn, empty."""
    return open_again()
