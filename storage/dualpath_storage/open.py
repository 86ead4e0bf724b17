"""Stores by URL."""

from urllib.parse import parse_qsl, unquote, urlsplit

from dualpath_storage.faulty import FaultyStore, parse_faults
from dualpath_storage.layout import KVLayout
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.memory import MemoryStore
from dualpath_storage.posix import PosixStore
from dualpath_storage.store import BlockStore, StoreError

_FAULTY = "faulty+"
_EXPECTED = "expected file:///absolute/folder, memory://name, or one of them as faulty+URL?flip=0.05&seed=1"


def open_store(url: str, layout: KVLayout) -> BlockStore:
    """The store that `url` names, opened for blocks of `layout`. Raises StoreError.

    `file:///folder` is a `PosixStore` (with `?direct=1`, one that reads past the page cache), `memory://name` a
    `MemoryStore` that stores of the same name in this process share, and `faulty+` before either a `FaultyStore` whose
    query gives the fields of `Faults`.
    """
    if url.startswith(_FAULTY):
        plain, _, query = url.removeprefix(_FAULTY).partition("?")
        faults = parse_faults(parse_qsl(query, keep_blank_values=True))
        return FaultyStore(_open_plain(plain, layout), faults)
    return _open_plain(url, layout)


def _open_plain(url: str, layout: KVLayout) -> MediumStore:
    parts = urlsplit(url)
    direct = parts.scheme == "file" and parts.query == "direct=1"
    if (parts.query and not direct) or parts.fragment:
        raise StoreError(f"store URL {url!r} has a query or fragment, which its scheme does not take: {_EXPECTED}")
    if parts.scheme == "memory" and not parts.path:
        return MemoryStore(layout, name=parts.netloc)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return PosixStore(unquote(parts.path), layout, direct=direct)
    raise StoreError(f"store URL {url!r}: {_EXPECTED}")
