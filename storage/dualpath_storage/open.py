"""Stores by URL."""

from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from dualpath_storage.faulty import FaultyStore, parse_faults
from dualpath_storage.layout import KVField, KVLayout
from dualpath_storage.medium import Medium
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.memory import MemoryStore
from dualpath_storage.mooncake_url import MOONCAKE_EXPECTED, MOONCAKE_PARAMETERS
from dualpath_storage.object_url import OBJECT_EXPECTED, OBJECT_PARAMETERS, is_object_url
from dualpath_storage.posix import PosixStore
from dualpath_storage.posix_folder import is_store
from dualpath_storage.store import BlockStore, StoreError

_FAULTY = "faulty+"
_ANY_LAYOUT = KVLayout((KVField("any", (1,), "uint8"),), 1, 1)
_EXPECTED = (
    f"expected file:///absolute/folder, memory://name, {OBJECT_EXPECTED}, {MOONCAKE_EXPECTED}, "
    "or faulty+URL?flip=0.05&seed=1"
)
_OWN_PARAMETERS = (*OBJECT_PARAMETERS, *MOONCAKE_PARAMETERS)


def open_store(url: str, layout: KVLayout) -> BlockStore:
    """The store that `url` names, opened for blocks of `layout`. Raises StoreError.

    `file:///folder` is a `PosixStore` (with `?direct=1`, one that reads past the page cache), `memory://name` a
    `MemoryStore` that stores of the same name in this process share, the schemes of object stores an `ObjectStore`,
    `mooncake://` a `MooncakeStore`, and `faulty+` before any of them a `FaultyStore` whose query gives the fields of
    `Faults`.
    """
    if url.startswith(_FAULTY):
        plain, _, query = url.removeprefix(_FAULTY).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        own = urlencode([(name, value) for name, value in pairs if name in _OWN_PARAMETERS], safe=":/")
        faults = parse_faults(pair for pair in pairs if pair[0] not in _OWN_PARAMETERS)
        return FaultyStore(_open_plain(f"{plain}?{own}" if own else plain, layout), faults)
    return _open_plain(url, layout)


def open_medium(url: str, *, must_exist: bool) -> Medium:
    """What lies beneath the store that `url` names: the blocks of all layouts, as they are. For tools.

    Raises StoreError, with `must_exist` also where there is no store yet; without it, it is made.
    """
    parts = urlsplit(url.removeprefix(_FAULTY))
    if must_exist and parts.scheme == "file" and parts.path.startswith("/") and not is_store(unquote(parts.path)):
        raise StoreError(f"{url} is no block store: no store was ever opened there")
    store = open_store(url, _ANY_LAYOUT)
    if not isinstance(store, MediumStore):
        raise StoreError(f"{url} keeps no blocks of its own: give the URL of the store beneath it")
    return store.medium


def _open_plain(url: str, layout: KVLayout) -> MediumStore:
    if is_object_url(url):
        from dualpath_storage.object_store import ObjectStore  # TensorStore takes a while to load

        return ObjectStore(url, layout)
    if url.startswith("mooncake:"):
        from dualpath_storage.mooncake_store import MooncakeStore

        return MooncakeStore(url, layout)
    parts = urlsplit(url)
    direct = parts.scheme == "file" and parts.query == "direct=1"
    if (parts.query and not direct) or parts.fragment:
        raise StoreError(f"store URL {url!r} has a query or fragment, which its scheme does not take: {_EXPECTED}")
    if parts.scheme == "memory" and not parts.path:
        return MemoryStore(layout, name=parts.netloc)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return PosixStore(unquote(parts.path), layout, direct=direct)
    raise StoreError(f"store URL {url!r}: {_EXPECTED}")
