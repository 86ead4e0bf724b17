"""What the URL of a Mooncake store says."""

import re
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from dualpath_storage.store import StoreError

MOONCAKE_PARAMETERS = ("admin", "metadata", "replicas", "segment_bytes")
"""What the query of a `mooncake://` URL may say."""

MOONCAKE_EXPECTED = "mooncake://host:port/prefix?segment_bytes=BYTES&replicas=N&admin=host:port&metadata=URL"

_DEFAULT_ADMIN_PORT = 9003
_PEER_TO_PEER = "P2PHANDSHAKE"
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_METADATA = re.compile(r"(https?|etcd|redis)://\S+")

Address = tuple[str, int]


@dataclass(frozen=True)
class MooncakeLocation:
    """A cluster by its master's address, what this process adds to it, and the prefix of the names of blocks.

    `metadata` is Mooncake's word for who tells clients of one another; `admin` is the master's HTTP address.
    """

    url: str
    master: Address
    prefix: str
    segment_bytes: int = 0
    replicas: int = 1
    admin: Address = ("", 0)
    metadata: str = _PEER_TO_PEER


def parse_mooncake_url(url: str) -> MooncakeLocation:
    """Raises StoreError, without asking any server."""
    parts = urlsplit(url)
    if parts.scheme != "mooncake" or parts.fragment:
        _refuse(url, f"expected {MOONCAKE_EXPECTED}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in MOONCAKE_PARAMETERS:
            _refuse(url, f"parameter {name!r}: mooncake:// takes {', '.join(MOONCAKE_PARAMETERS)}")
    master = _address(url, "master", parts.netloc)
    metadata = given.get("metadata", _PEER_TO_PEER)
    if metadata != _PEER_TO_PEER and not _METADATA.fullmatch(metadata):
        _refuse(url, f"metadata {metadata!r}: expected http://host:port/metadata or {_PEER_TO_PEER}")
    prefix = unquote(parts.path).strip("/")
    return MooncakeLocation(
        url,
        master,
        f"{prefix}/" if prefix else "",
        segment_bytes=_number(url, "segment_bytes", given.get("segment_bytes", "0"), 0),
        replicas=_number(url, "replicas", given.get("replicas", "1"), 1),
        admin=_address(url, "admin", given["admin"]) if "admin" in given else (master[0], _DEFAULT_ADMIN_PORT),
        metadata=metadata,
    )


def _address(url: str, name: str, text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        _refuse(url, f"{name} {text!r}: expected host:port")
    return match[1].strip("[]"), int(match[2])


def _number(url: str, name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        _refuse(url, f"{name} {text!r}: expected a whole number from {least} on")
    return int(text)


def _refuse(url: str, complaint: str) -> NoReturn:
    raise StoreError(f"store URL {url!r}: {complaint}")
