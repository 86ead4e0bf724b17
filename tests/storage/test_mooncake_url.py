"""URLs of Mooncake stores: what they mean, and what is wrong with them, without asking any server."""

import re
import sys

import pytest
from pydantic import ValidationError

from dualpath_configs.cluster import StorageSpec
from dualpath_storage import StoreError, open_store
from dualpath_storage.mooncake_url import MooncakeLocation, parse_mooncake_url
from tests.storage.blocks import LAYOUT

MASTER = ("kv1", 50051)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mooncake://kv1:50051", {"master": MASTER, "prefix": "", "admin": ("kv1", 9003)}),
        ("mooncake://kv1:50051/a%20b/c/", {"master": MASTER, "prefix": "a b/c/", "admin": ("kv1", 9003)}),
        ("mooncake://[::1]:5/p?admin=[::1]:6", {"master": ("::1", 5), "prefix": "p/", "admin": ("::1", 6)}),
        (
            "mooncake://kv1:50051/p?segment_bytes=4096&replicas=2&admin=kv2:90&metadata=http://kv1:8080/metadata",
            {
                "master": MASTER,
                "prefix": "p/",
                "admin": ("kv2", 90),
                "segment_bytes": 4096,
                "replicas": 2,
                "metadata": "http://kv1:8080/metadata",
            },
        ),
    ],
)
def test_what_a_url_means(url: str, expected: dict[str, object]) -> None:
    assert parse_mooncake_url(url) == MooncakeLocation(url, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mooncake://kv1/p", "master 'kv1': expected host:port"),
        ("mooncake://", "master '': expected host:port"),
        ("mooncake://kv1:0/p", "master 'kv1:0': expected host:port"),
        ("mooncake://kv1:65536/p", "master 'kv1:65536': expected host:port"),
        ("mooncake://kv1:5/p?admin=kv1", "admin 'kv1': expected host:port"),
        ("mooncake://kv1:5/p?segment_bytes=1GB", "segment_bytes '1GB': expected a whole number from 0 on"),
        ("mooncake://kv1:5/p?segment_bytes=-1", "segment_bytes '-1': expected a whole number from 0 on"),
        ("mooncake://kv1:5/p?replicas=0", "replicas '0': expected a whole number from 1 on"),
        ("mooncake://kv1:5/p?metadata=here", "metadata 'here': expected http://host:port/metadata or P2PHANDSHAKE"),
        ("mooncake://kv1:5/p?size=1", "parameter 'size': mooncake:// takes admin, metadata, replicas, segment_bytes"),
        ("mooncake://kv1:5/p#x", "expected mooncake://host:port/prefix?segment_bytes="),
    ],
)
def test_urls_that_mean_nothing(url: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=rf"^store URL {re.escape(repr(url))}: {re.escape(complaint)}"):
        open_store(url, LAYOUT)


def test_a_cluster_may_be_on_mooncake() -> None:
    url = "mooncake://kv1:50051/p?segment_bytes=1048576"
    assert StorageSpec(url=url).url == url
    assert StorageSpec(url=f"faulty+{url}&flip=0.1").url
    with pytest.raises(ValidationError, match="mooncake://host:port/prefix"):
        StorageSpec(url="mooncake://")


def test_a_missing_package_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(
        StoreError, match=r"Mooncake cannot be loaded \(.*\): pip install dualpath-jax\[mooncake\], and"
    ):
        open_store("mooncake://127.0.0.1:1/p", LAYOUT)
