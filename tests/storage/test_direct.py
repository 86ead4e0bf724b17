"""Reads past the page cache: into aligned buffers and others, and file systems that have no such reads."""

import errno
import mmap
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dualpath_storage import BlockRead, KVLayout, PosixStore, StoreError, open_store
from tests.storage.blocks import LAYOUT, chain, overwrite, put_all, raw, statuses

ALIGNED = KVLayout.mla(layers=4, latent=112, rope=16, dtype="uint8", block_tokens=64)  # layers of 8 KiB


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PosixStore]:
    try:
        store = PosixStore(tmp_path / "store", ALIGNED, direct=True)
    except StoreError as error:
        pytest.skip(f"{tmp_path} is on a file system without unbuffered reads: {error}")
    yield store
    await store.close()


@pytest.mark.parametrize("misaligned", [0, 1, 512, 4095])
@pytest.mark.parametrize("layers", [None, (0, 1), (0, 3), (1, 4), (2, 3)])
async def test_buffers_at_any_address(store: PosixStore, misaligned: int, layers: tuple[int, int] | None) -> None:
    (block,) = chain(1, layout=ALIGNED)
    await put_all(store, [block])
    span = ALIGNED.layer_span(*layers or (0, 4))
    memory = memoryview(mmap.mmap(-1, ALIGNED.block_bytes + 8192))
    into = memory[misaligned : misaligned + span.stop - span.start]
    (result,) = await store.get([BlockRead(block.key, block.tokens, into, layers)], deadline_s=5)
    assert result.ok, result
    assert into == block.data[span]
    assert not any(memory[misaligned + len(into) :]), "nothing beyond the buffer is touched"


async def test_bytes_go_straight_into_an_aligned_buffer(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = chain(1, layout=ALIGNED)
    await put_all(store, [block])
    into = memoryview(mmap.mmap(-1, ALIGNED.block_bytes))
    preadv = os.preadv

    def read_and_look(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        seen = preadv(descriptor, buffers, offset)
        assert into == block.data, "the bytes are there as soon as the kernel returns"
        return seen

    monkeypatch.setattr(os, "preadv", read_and_look)
    (result,) = await store.get([block.read(into)], deadline_s=5)
    assert result.ok, result


@pytest.mark.parametrize("change", [-1, -5000, 1, 5000])
async def test_a_block_of_another_length_is_corrupt(store: PosixStore, change: int) -> None:
    (block,) = chain(1, layout=ALIGNED)
    await put_all(store, [block])
    whole = raw(store, block)
    overwrite(store, block, whole[:change] if change < 0 else whole + b"x" * change)
    assert await statuses(store, [block]) == ["corrupt"]


async def test_a_read_that_ends_within_the_file_is_no_damage(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged blocks are deleted; this one is whole."""
    (block,) = chain(1, layout=ALIGNED)
    await put_all(store, [block])
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: preadv(descriptor, buffers[:1], offset))
    (result,) = await store.get([block.read(memoryview(mmap.mmap(-1, ALIGNED.block_bytes)))], deadline_s=5)
    assert result.status.value == "failed"
    assert "ended after 4096, within the file" in result.detail


async def test_the_url_says_so(store: PosixStore) -> None:
    blocks = chain(3, layout=ALIGNED)
    await put_all(store, blocks)
    again = open_store(store.url, ALIGNED)
    assert isinstance(again, PosixStore)
    assert again.url == store.url
    assert store.url.endswith("?direct=1")
    assert await statuses(again, blocks) == ["ok"] * 3
    await again.close()


def test_a_file_system_without_such_reads_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *arguments: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        StoreError, match=r"refuses unbuffered reads .*Invalid argument\): open the store without \?dir"
    ):
        PosixStore(tmp_path / "store", LAYOUT, direct=True)
    assert [path for path in (tmp_path / "store" / "tmp").iterdir() if path.suffix == ".lock"] == []
