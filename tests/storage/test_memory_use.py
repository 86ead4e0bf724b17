"""Reading any amount through a store takes the memory of the buffers it was given, and a bounded amount besides."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seaweedfs import SeaweedFS
from tests.storage.blocks import REPOSITORY

MOST_BESIDES_BYTES = 64_000_000

SCRIPT = """
import asyncio, sys
from dualpath_storage import KVLayout, open_store
from tests.storage.blocks import chain, put_all

LAYOUT = KVLayout.mla(layers=8, latent=7168, rope=1024, dtype="uint8", block_tokens=64)  # 4 MiB a block

def resident_bytes(field):
    lines = open("/proc/self/status").read().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith(field)]
    return 1024 * int(kilobytes)

async def main():
    url, total_bytes = sys.argv[1], int(sys.argv[2])
    store = open_store(url, LAYOUT)
    blocks = chain(8, layout=LAYOUT)
    await put_all(store, blocks)
    buffers = [bytearray(b"x" * LAYOUT.block_bytes) for _ in blocks]
    reads = [block.read(buffer) for block, buffer in zip(blocks, buffers)]
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak so far is forgotten
    before = resident_bytes("VmRSS")
    read_bytes = 0
    while read_bytes < total_bytes:
        assert all(result.ok for result in await store.get(reads, deadline_s=60))
        read_bytes += len(reads) * LAYOUT.block_bytes
    print(resident_bytes("VmHWM") - before)
    assert all(buffer == block.data for buffer, block in zip(buffers, blocks))
    await store.close()

asyncio.run(main())
"""


GIGABYTES = pytest.mark.parametrize("gigabytes", [1, pytest.param(10, marks=pytest.mark.long)])


def besides_bytes(url: str, gigabytes: int) -> int:
    """What reading so much takes in a process of its own."""
    arguments = [sys.executable, "-c", SCRIPT, url, str(gigabytes * 10**9)]
    done = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    if "refuses unbuffered reads" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("query", ["", "?direct=1"])
@GIGABYTES
def test_reading_takes_no_memory_but_the_callers(tmp_path: Path, query: str, gigabytes: int) -> None:
    assert besides_bytes(f"file://{tmp_path}{query}", gigabytes) < MOST_BESIDES_BYTES


@GIGABYTES
def test_reading_from_s3_takes_little_more_than_what_is_under_way(seaweedfs: SeaweedFS, gigabytes: int) -> None:
    assert besides_bytes(seaweedfs.url(), gigabytes) < MOST_BESIDES_BYTES
