"""What a testbed needs of the machine."""

import os
import shutil

import pytest

from dualpath_jax.testbed.seaweedfs import StorageServerError, find_weed


def _has_weed() -> bool:
    try:
        return bool(find_weed())
    except StorageServerError:
        return False


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None or not _has_weed(),
    reason="needs root, iproute2 and weed: makes network namespaces with an S3 server",
)
