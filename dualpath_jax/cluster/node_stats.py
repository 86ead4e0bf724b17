"""The Node service: what passed a node's cards, for reports."""

import grpc

from dualpath_jax.cluster import peer_pb2 as pb
from dualpath_jax.cluster import peer_pb2_grpc
from dualpath_jax.transfer import TrafficManager


class NodeStats(peer_pb2_grpc.NodeServicer):
    """Answers `Stats` from the traffic manager's counters, and counts what storage did not take."""

    def __init__(self, traffic: TrafficManager) -> None:
        self._traffic = traffic
        self.dropped_blocks = 0
        self.pending_blocks = 0

    async def Stats(  # noqa: N802
        self, request: pb.StatsRequest, context: "grpc.aio.ServicerContext[pb.StatsRequest, pb.StatsReply]"
    ) -> pb.StatsReply:
        stats = self._traffic.stats()
        samples = [
            pb.SnicSample(time=s.time_s, seconds=s.seconds, read_bytes=s.read_bytes, written_bytes=s.written_bytes)
            for s in stats.snic_samples
        ]
        return pb.StatsReply(
            snic_read_bytes=stats.snic_read_bytes,
            memory_read_bytes=stats.memory_read_bytes,
            snic_written_bytes=stats.snic_written_bytes,
            snic_read_busy_s=stats.snic_read_busy_s,
            cnic_bytes=stats.cnic_bytes,
            snic_samples=samples,
            dropped_blocks=self.dropped_blocks,
            pending_blocks=self.pending_blocks,
        )
