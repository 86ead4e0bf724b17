"""Keeping freed memory: what moving many megabytes through short-lived buffers needs of the C allocator."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 256 * 1024 * 1024
_MMAP_FROM_BYTES = 32 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Tell glibc to keep up to 256 MiB of freed memory; returns whether it did (elsewhere nothing happens).

    Each frame of a transfer lives in a few buffers of a mebibyte for a moment. By default glibc gives such memory back
    to the kernel at once and faults it in again page by page for the next frame: a fifth of the CPU time of a transfer
    (measured with `benchmarks/transfer.py`). Affects the whole process, so the process's main function calls it, once.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES) and mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES))
