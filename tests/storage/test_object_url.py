"""URLs of object stores: what they mean, and what is wrong with them, without asking any server."""

import re

import pytest

from dualpath_storage import FaultyStore, StoreError, open_store
from dualpath_storage.object_url import parse_object_url
from tests.storage.blocks import LAYOUT, chain, put_all, statuses

LOCAL = "http://127.0.0.1:8333"


@pytest.mark.parametrize(
    ("url", "driver", "settings", "prefix"),
    [
        ("s3://kv-cache/a/b", "s3", {"bucket": "kv-cache"}, "a/b/"),
        ("s3://kv-cache", "s3", {"bucket": "kv-cache"}, ""),
        ("s3://kv.cache/a%20b/?region=eu-west-1", "s3", {"bucket": "kv.cache", "aws_region": "eu-west-1"}, "a b/"),
        (
            f"s3://kvcache/p?endpoint={LOCAL}/",
            "s3",
            {"bucket": "kvcache", "endpoint": LOCAL, "aws_region": "us-east-1"},
            "p/",
        ),
        (
            f"s3://kvcache?region=x&endpoint={LOCAL}",
            "s3",
            {"bucket": "kvcache", "endpoint": LOCAL, "aws_region": "x"},
            "",
        ),
        ("gcs://kvcache/p/", "gcs", {"bucket": "kvcache"}, "p/"),
        ("tensorstore+file:///tmp/a%20b", "file", {}, "/tmp/a b/"),
        ("tensorstore+memory://name", "memory", {}, "name/"),
        ("tensorstore+memory://", "memory", {}, ""),
    ],
)
def test_what_a_url_means(url: str, driver: str, settings: dict[str, str], prefix: str) -> None:
    location = parse_object_url(url)
    assert (location.driver, location.settings, location.prefix) == (driver, settings, prefix)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://", "bucket '' is no bucket's name: expected 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("s3://ab/p", "bucket 'ab' is no bucket's name: expected 3 to 63"),
        ("s3://KVcache/p", "bucket 'KVcache' is no bucket's name"),
        ("s3://key:secret@bucket/p", "bucket 'key:secret@bucket' is no bucket's name"),
        ("gcs://no", "bucket 'no' is no bucket's name"),
        ("s3://kvcache/p?endpoint=127.0.0.1:8333", "endpoint '127.0.0.1:8333': expected http://host:port or https://"),
        ("s3://kvcache/p?endpoint=ftp://host", "endpoint 'ftp://host': expected http://host:port or https://host"),
        ("s3://kvcache/p?endpoint=", "endpoint '': expected http://host:port or https://host"),
        ("s3://kvcache/p?end=x", "has the parameter 'end': s3:// takes endpoint, region"),
        ("gcs://kvcache/p?region=x", "has the parameter 'region': gcs:// takes none"),
        ("s3://kvcache/p#x", "has a fragment: expected s3://bucket/prefix"),
        ("tensorstore+file://tmp/x", "expected s3://bucket/prefix"),
        ("tensorstore+memory://a/b", "expected s3://bucket/prefix"),
        ("tensorstore+memory://a?b=1", "has a query or fragment, which its scheme does not take"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=f"^store URL {re.escape(repr(url))}:? ?{re.escape(complaint)}"):
        open_store(url, LAYOUT)


async def test_stores_in_memory_share_by_name() -> None:
    names = ("one", "one", "two", "", "")
    stores = [open_store(f"tensorstore+memory://{name}", LAYOUT) for name in names]
    blocks = chain(3)
    await put_all(stores[0], blocks)
    await put_all(stores[3], blocks)
    assert [await statuses(store, blocks) for store in stores] == [
        [status] * 3 for status in ("ok", "ok", "missing", "ok", "missing")
    ]
    for store in stores:
        await store.close()


async def test_faults_and_parameters_stand_in_one_query() -> None:
    with pytest.raises(StoreError, match="fault 'flipp' in a store URL"):
        open_store(f"faulty+s3://kvcache/p?endpoint={LOCAL}&flipp=1", LAYOUT)
    with pytest.raises(StoreError, match="endpoint 'x': expected http"):
        open_store("faulty+s3://kvcache/p?flip=1&endpoint=x", LAYOUT)
    store = open_store("faulty+tensorstore+memory://?flip=1.0", LAYOUT)
    assert isinstance(store, FaultyStore)
    assert store.url.startswith("faulty+tensorstore+memory://?flip=1.0&")
    await store.close()
