"""Serving agents on JAX with dual-path KV loading.

import dualpath_jax

with dualpath_jax.LocalCluster("local_1p1d") as cluster:
    session = cluster.session()
    print(session.generate([1, 2, 3], max_tokens=8).tokens)
"""

from dualpath_jax.launch.local import LocalCluster
from dualpath_jax.launch.processes import ClusterError
from dualpath_jax.rollout import Client, Generation, RequestTimings, Session
from dualpath_scheduler.service import InvalidRequest, RequestFailed, SchedulerUnavailable

__all__ = [
    "Client",
    "ClusterError",
    "Generation",
    "InvalidRequest",
    "LocalCluster",
    "RequestFailed",
    "RequestTimings",
    "SchedulerUnavailable",
    "Session",
]
