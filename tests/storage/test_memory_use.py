"""Reading any amount through a store takes the memory of the buffers it was given, and a bounded amount besides."""

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("query", ["", "?direct=1"])
@pytest.mark.parametrize("gigabytes", [1, pytest.param(10, marks=pytest.mark.long)])
def test_reading_takes_no_memory_but_the_callers(tmp_path: Path, query: str, gigabytes: int) -> None:
    arguments = [f"file://{tmp_path}{query}", str(gigabytes * 10**9)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=600
    )
    if "refuses unbuffered reads" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST_BESIDES_BYTES
