"""The allocator keeps what transfers free."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from dualpath_jax.transfer import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in range(1 << 20, (1 << 20) + 400):
    frames = [bytes([1]) * (size + i * 4096) for i in range(8)]
    del frames
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator only")
def test_freed_frames_are_not_faulted_in_again():
    faults = {
        mode: int(subprocess.check_output([sys.executable, "-c", SCRIPT, mode], text=True)) for mode in ("keep", "not")
    }
    assert faults["keep"] < 0.1 * faults["not"], faults
