"""Asking a node, from outside the cluster, what passed its cards."""

import grpc

from dualpath_jax.cluster import peer_pb2 as pb
from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.cluster.peers import CHANNEL_OPTIONS

DEADLINE_S = 10.0


def node_stats(address: str) -> pb.StatsReply:
    """The counters of the node at `address`. Raises ConnectionError, naming it, where it does not answer."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            return peer_pb2_grpc.NodeStub(channel).Stats(pb.StatsRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            raise ConnectionError(f"the node at {address} does not answer: {error}") from error
