"""Blocks in an object store: Amazon S3 and whatever speaks its protocol, Google Cloud Storage."""

import time
from functools import partial
from typing import final

import tensorstore

from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.layout import KVLayout
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.object_medium import ObjectMedium
from dualpath_storage.object_requests import CONTEXT, RequestError, explained, perform
from dualpath_storage.object_url import ObjectLocation, parse_object_url
from dualpath_storage.store import StoreError

_OPEN_DEADLINE_S = 5.0
_PROBE_THREADS = 32
_SHARED_MEMORY = tensorstore.Context()
_MARK = "dualpath-store"
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud",
}


@final
class ObjectStore(MediumStore):
    """`s3://bucket/prefix?endpoint=http://host:port&region=NAME`, `gcs://bucket/prefix`, `tensorstore+file:///folder`,
    and `tensorstore+memory://name`, which stores of the same name in one process share.

    Without `endpoint` it is Amazon's S3, whose region is found out. Credentials are those that TensorStore finds in
    the standard places of either cloud. `threads` bounds the reads, and the writes, that are under way; each holds
    a block's bytes. Any number of processes and hosts may share a prefix.

    Raises StoreError where the URL is wrong or the bucket cannot be listed: it does not exist, the credentials are
    refused, the server does not answer.
    """

    def __init__(self, url: str, layout: KVLayout, *, threads: int = 8) -> None:
        location = parse_object_url(url)
        medium = ObjectMedium(_open(location), block_bytes=HEADER_BYTES + layout.block_bytes)
        super().__init__(medium, layout, threads=threads, probe_threads=_PROBE_THREADS, full_duplex=True)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


def _open(location: ObjectLocation) -> tensorstore.KvStore:
    """A key-value store that has answered. What it is asked is to list nothing: a read says of a bucket that is missing
    what it says of a block that is missing."""
    context = _SHARED_MEMORY if location.driver == "memory" and location.prefix else tensorstore.Context(CONTEXT)
    spec = {"driver": location.driver, "path": location.prefix, **location.settings}
    nothing = tensorstore.KvStore.KeyRange("~", "~~")
    deadline_at = time.monotonic() + _OPEN_DEADLINE_S
    try:
        kv = tensorstore.KvStore.open(spec, context=context).result(timeout=_OPEN_DEADLINE_S)
        perform(partial(kv.list, nothing), deadline_at=deadline_at)
        if location.driver == "gcs":
            _leave_mark(kv, deadline_at)
    except RequestError as error:
        raise StoreError(f"store URL {location.url!r}: {_remedy(location, error)}") from None
    except TimeoutError:
        raise StoreError(
            f"store URL {location.url!r}: {location.server} does not answer within {_OPEN_DEADLINE_S:g} s: check the "
            "address, and that the server runs"
        ) from None
    except ValueError as error:
        raise StoreError(f"store URL {location.url!r}: {explained(error)[1]}") from None
    return kv


def _leave_mark(kv: tensorstore.KvStore, deadline_at: float) -> None:
    """TensorStore's driver for Google's cloud gives an empty list where it is refused or there is no bucket; only a
    write fails. So the first to open a store writes an empty object, which the others read."""
    found = perform(partial(kv.read, _MARK, byte_range=slice(0, 0)), deadline_at=deadline_at)
    if found.state != "value":
        perform(partial(kv.write, _MARK, b""), deadline_at=deadline_at)


def _remedy(location: ObjectLocation, error: RequestError) -> str:
    if error.code == "NOT_FOUND" and location.bucket:
        return f"bucket {location.bucket!r} is not at {location.server} ({error}): create it, or correct the URL"
    if error.code == "PERMISSION_DENIED" and location.driver in _CREDENTIALS:
        return (
            f"{location.server} refuses these credentials for bucket {location.bucket!r} ({error}): "
            f"{_CREDENTIALS[location.driver]}, to a key that may list, read and write there"
        )
    if location.bucket:
        return f"{location.server} cannot be used ({error}): check the address, and that the server runs"
    return str(error)
