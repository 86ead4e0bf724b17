"""Stores by URL, and the README's example."""

import re
from pathlib import Path

import pytest

from dualpath_storage import FaultyStore, MemoryStore, PosixStore, StoreError, open_store
from tests.storage.blocks import LAYOUT, REPOSITORY, chain, put_all, statuses

README = REPOSITORY / "storage" / "README.md"


async def test_a_file_url_names_a_folder(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a%20store"
    blocks = chain(3)
    store = open_store(url, LAYOUT)
    assert isinstance(store, PosixStore)
    await put_all(store, blocks)
    await store.close()
    assert len(list((tmp_path / "a store").glob("*/*.kv"))) == 3
    again = open_store(url, LAYOUT)
    assert await statuses(again, blocks) == ["ok"] * 3
    await again.close()


async def test_memory_stores_share_by_name() -> None:
    blocks = chain(3)
    stores = [open_store(url, LAYOUT) for url in ("memory://a", "memory://a", "memory://b", "memory://", "memory://")]
    assert isinstance(stores[0], MemoryStore)
    await put_all(stores[0], blocks)
    await put_all(stores[3], blocks)
    found = [await statuses(store, blocks) for store in stores]
    assert found == [[status] * 3 for status in ("ok", "ok", "missing", "ok", "missing")]
    for store in stores:
        await store.close()


async def test_a_faulty_url_says_how_often(tmp_path: Path) -> None:
    url = f"faulty+file://{tmp_path}?flip=1.0&hang=0.0&seed=7"
    store = open_store(url, LAYOUT)
    assert isinstance(store, FaultyStore)
    blocks = chain(3)
    await put_all(store, blocks)
    assert await statuses(store, blocks) == ["corrupt"] * 3
    assert store.url == f"faulty+file://{tmp_path}?flip=1.0&delay_s=0.02&overrun_s=0.05&seed=7"
    await store.close()
    healthy = open_store(f"faulty+file://{tmp_path}", LAYOUT)
    assert await statuses(healthy, blocks) == ["ok"] * 3
    await healthy.close()


@pytest.mark.parametrize(
    "url", ["ftp://host/store", "/tmp/store", "file://relative/store", "file:store", "", "memory:///x"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match=rf"store URL '{re.escape(url)}': expected file:///absolute/folder, memory://"):
        open_store(url, LAYOUT)


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("flip=often", "fault flip='often' in a store URL: expected a number"),
        ("seed=0.5", "fault seed='0.5' in a store URL: expected a number"),
        ("flipp=0.5", "fault 'flipp' in a store URL: expected one of delay, hang, error,"),
        ("flip=2", r"store URL: fault rate flip is 2\.0: expected 0 to 1"),
        ("flip=nan", "store URL: fault rate flip is nan: expected 0 to 1"),
        ("flip", "fault flip='' in a store URL: expected a number"),
    ],
)
def test_bad_faults_are_refused(query: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        open_store(f"faulty+memory://?{query}", LAYOUT)


def test_a_query_on_a_plain_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has a query or fragment, which its scheme does not take"):
        open_store(f"file://{tmp_path}?flip=1", LAYOUT)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out == "Status.OK True\n"
