"""What the URL of an object store says."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from dualpath_storage.store import StoreError

OBJECT_PARAMETERS = ("endpoint", "region", "profile")
"""What the query of an `s3://` URL may say."""

OBJECT_EXPECTED = (
    "s3://bucket/prefix?endpoint=http://host:port&region=NAME, gcs://bucket/prefix, tensorstore+file:///folder or "
    "tensorstore+memory://name"
)

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(r"https?://[^/?#\s]+/?")
_SERVERS = {"s3": "Amazon S3", "gcs": "Google Cloud Storage"}
_FOREIGN_ENDPOINT_REGION = "us-east-1"


@dataclass(frozen=True)
class ObjectLocation:
    """Where blocks are kept: `driver` and `settings` make a TensorStore spec, `prefix` stands before every key.

    `profile` is the one of the AWS credentials file to use where the environment has no key.
    """

    url: str
    driver: str
    settings: dict[str, Any]
    prefix: str
    profile: str = "default"

    @property
    def bucket(self) -> str:
        return str(self.settings.get("bucket", ""))

    @property
    def server(self) -> str:
        """Who has to answer, as an error names it."""
        endpoint = self.settings.get("endpoint")
        return f"endpoint {endpoint}" if endpoint else _SERVERS.get(self.driver, self.driver)


def is_object_url(url: str) -> bool:
    """Whether `url` has the scheme of an object store."""
    return url.startswith(("s3:", "gcs:", "tensorstore+file:", "tensorstore+memory:"))


def parse_object_url(url: str) -> ObjectLocation:
    """Raises StoreError, without asking any server."""
    parts = urlsplit(url)
    if parts.scheme in ("s3", "gcs"):
        return _bucket_location(url)
    path = unquote(parts.path)
    if parts.query or parts.fragment:
        raise StoreError(f"store URL {url!r} has a query or fragment, which its scheme does not take")
    if parts.scheme == "tensorstore+file" and not parts.netloc and path.startswith("/"):
        return ObjectLocation(url, "file", {}, _as_prefix(path, absolute=True))
    if parts.scheme == "tensorstore+memory" and not path:
        return ObjectLocation(url, "memory", {}, _as_prefix(parts.netloc))
    raise StoreError(f"store URL {url!r}: expected {OBJECT_EXPECTED}")


def _bucket_location(url: str) -> ObjectLocation:
    parts = urlsplit(url)
    if not _BUCKET.fullmatch(parts.netloc):
        raise StoreError(
            f"store URL {url!r}: bucket {parts.netloc!r} is no bucket's name: expected 3 to 63 lower-case letters, "
            "digits, dots and hyphens"
        )
    settings, profile = {"bucket": parts.netloc}, "default"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if parts.scheme == "gcs" or name not in OBJECT_PARAMETERS:
            taken = f"{parts.scheme}:// takes " + ("none" if parts.scheme == "gcs" else ", ".join(OBJECT_PARAMETERS))
            raise StoreError(f"store URL {url!r} has the parameter {name!r}: {taken}")
        if name == "endpoint" and not _ENDPOINT.fullmatch(value):
            raise StoreError(f"store URL {url!r}: endpoint {value!r}: expected http://host:port or https://host")
        if name == "profile":
            profile = value
        else:
            settings["aws_region" if name == "region" else "endpoint"] = value.rstrip("/")
    if parts.fragment:
        raise StoreError(f"store URL {url!r} has a fragment: expected {OBJECT_EXPECTED}")
    if "endpoint" in settings:
        settings.setdefault("aws_region", _FOREIGN_ENDPOINT_REGION)
    return ObjectLocation(url, parts.scheme, settings, _as_prefix(unquote(parts.path)), profile)


def _as_prefix(path: str, *, absolute: bool = False) -> str:
    """`path` with one slash after it, so that `prefix` and `prefix2` are two stores."""
    name = path.strip("/")
    return "/" * absolute + (f"{name}/" if name else "")
