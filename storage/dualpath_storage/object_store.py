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
_NO_KEY = "AWS_AUTH_CREDENTIALS_PROVIDER_INVALID_ENVIRONMENT"
_REMEDIES = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the URL's `profile`",
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS, or log in with gcloud",
}


@final
class ObjectStore(MediumStore):
    """`s3://bucket/prefix?endpoint=http://host:port&region=NAME`, `gcs://bucket/prefix`, `tensorstore+file:///folder`,
    and `tensorstore+memory://name`, which stores of the same name in one process share.

    Without `endpoint` it is Amazon's S3, whose region is found out. Credentials are those that TensorStore finds in
    the standard places of either cloud; `&profile=NAME` is which of S3's is read where the environment has no key,
    `default` where it is absent. `threads` bounds the reads, and the writes, that are under way; each holds
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
    deadline_at = time.monotonic() + _OPEN_DEADLINE_S
    try:
        kv = _connect(location, deadline_at)
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


def _connect(location: ObjectLocation, deadline_at: float) -> tensorstore.KvStore:
    """Of S3's credentials the environment's are tried alone, and the chain of all places where it has none.

    The chain looks for files even where the environment has a key, and prints an error for each that is missing; and
    it reads no profile, not even the one named `default`, whose name it is not given.
    """
    if location.driver != "s3":
        return _answering(location, {}, deadline_at)
    try:
        return _answering(location, {"aws_credentials": {"type": "environment"}}, deadline_at)
    except RequestError as error:
        if _NO_KEY not in str(error):
            raise
    chain = {"type": "default", "profile": location.profile}
    return _answering(location, {"aws_credentials": chain}, deadline_at)


def _answering(location: ObjectLocation, credentials: dict[str, object], deadline_at: float) -> tensorstore.KvStore:
    context = _SHARED_MEMORY if location.driver == "memory" and location.prefix else tensorstore.Context(CONTEXT)
    spec = {"driver": location.driver, "path": location.prefix, **location.settings, **credentials}
    kv = tensorstore.KvStore.open(spec, context=context).result(timeout=max(0.0, deadline_at - time.monotonic()))
    nothing = tensorstore.KvStore.KeyRange("~", "~~")
    perform(partial(kv.list, nothing), deadline_at=deadline_at)
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
    if error.code == "PERMISSION_DENIED" and location.driver in _REMEDIES:
        return (
            f"{location.server} refuses these credentials for bucket {location.bucket!r} ({error}): "
            f"{_REMEDIES[location.driver]}, to a key that may list, read and write there"
        )
    if location.bucket:
        return f"{location.server} cannot be used ({error}): check the address, and that the server runs"
    return str(error)
