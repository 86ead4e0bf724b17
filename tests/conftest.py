"""The strictest world that JAX offers, on eight emulated devices. Set before anything imports jax."""

import os

from tests.gcs import gcs
from tests.mooncake import mooncake, shared_mooncake
from tests.seaweedfs import s3_credentials, seaweedfs, shared_seaweedfs

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"

__all__ = [  # fixtures for every folder
    "gcs",
    "mooncake",
    "s3_credentials",
    "seaweedfs",
    "shared_mooncake",
    "shared_seaweedfs",
]
