import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dualpath_storage import Faults, FaultyStore, KVLayout, MemoryStore, PosixStore, StoreError
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.mooncake_store import MooncakeStore
from dualpath_storage.object_store import ObjectStore
from tests.gcs import FakeGCS
from tests.seaweedfs import SeaweedFS
from tests.storage.blocks import LAYOUT

OpenAgain = Callable[..., MediumStore]
OBJECT_KINDS = ("s3", "gcs", "tensorstore+file", "tensorstore+memory")


def object_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty object store; for S3, the server is started where it does not run yet."""
    if kind in ("s3", "gcs"):
        server: SeaweedFS | FakeGCS = request.getfixturevalue("seaweedfs" if kind == "s3" else "gcs")
        return server.url()
    return f"{kind}://{folder / 'objects' if kind == 'tensorstore+file' else secrets.token_hex(4)}"


@pytest.fixture(params=["posix", "direct", "memory", "faulty", "mooncake", *OBJECT_KINDS])
async def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenAgain]:
    """Opens the same store, as often as asked and for any layout; closes them all."""
    name = secrets.token_hex(4)
    opened: list[MediumStore] = []
    url = object_url(request.param, request, tmp_path) if request.param in OBJECT_KINDS else ""
    if request.param == "mooncake":
        url = request.getfixturevalue("mooncake").url()

    def open_one(layout: KVLayout = LAYOUT) -> MediumStore:
        store: MediumStore
        if request.param == "mooncake":
            store = MooncakeStore(url, layout)
        elif url:
            store = ObjectStore(url, layout)
        elif request.param == "memory":
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
