"""KV that never ends: one of two processes that write to each other's memory as fast as the network lets them.

    python -m dualpath_jax.testbed.kv_load --bind=10.0.0.1:0 --folder=/tmp/x --name=a --peer=b

The two find each other by files in `--folder`. For every line on standard input one line goes out: the bytes that have
arrived at the peer so far. The end of standard input ends it.
"""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
from absl import flags

from dualpath_configs import NetworkSpec
from dualpath_jax.launch.flags import cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.lifetime import until_stopped, write_address
from dualpath_jax.transfer import GrpcTransport, Lane, RegionHandle, RegionWrite, TrafficManager, TransferError
from dualpath_storage.layout import KVLayout

FLAGS = flags.FLAGS
BATCH_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 256 * 1024
BATCHES = 2
"""At once, so that there is always one that waits."""

DEADLINE_S = 60.0
PEER_S = 60.0
_LAYOUT = KVLayout.mla(layers=1, latent=48, rope=16, dtype="bfloat16", block_tokens=64)  # asked for, but not used here


def _define_flags() -> None:
    define_config_flags()
    flags.DEFINE_string("bind", "127.0.0.1:0", "host:port to listen on.")
    flags.DEFINE_string("folder", "", "Folder that both processes see.")
    flags.DEFINE_string("name", "a", "What this process is called there.")
    flags.DEFINE_string("peer", "b", "What the other one is called.")


def main() -> int:
    """Send until standard input ends."""
    asyncio.run(until_stopped(_run(cluster_from_flags().network), with_stdin=False))
    return 0


async def _run(network: NetworkSpec) -> None:
    lanes = {Lane.LOAD: network.lanes.load.dscp}
    transport = GrpcTransport(bind=FLAGS.bind, lane_dscp=lanes)
    free = network.model_copy(update={"snic_bytes_per_s": None, "cnic_bytes_per_s": None})
    traffic = TrafficManager(transport, layout=_LAYOUT, network=free, engines=1)
    await transport.start()
    try:
        memory = np.zeros(BATCH_BYTES, np.uint8)
        handle = transport.register([memory.data])
        own = {"address": transport.address, "handle": dataclasses.asdict(handle)}
        write_address(str(Path(FLAGS.folder) / FLAGS.name), json.dumps(own))
        peer, region = await _peer()
        sending = [asyncio.create_task(_send(traffic, peer, region)) for _ in range(BATCHES)]
        await asyncio.wait([*sending, asyncio.create_task(_answer(traffic))], return_when=asyncio.FIRST_COMPLETED)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    finally:
        await traffic.close()
        await transport.close()


async def _peer() -> tuple[str, RegionHandle]:
    path = Path(FLAGS.folder) / FLAGS.peer
    async with asyncio.timeout(PEER_S):
        while not path.exists():  # noqa: ASYNC110  (another process makes it)
            await asyncio.sleep(0.05)
    said = json.loads(path.read_text())
    return said["address"], RegionHandle(**said["handle"])


async def _send(traffic: TrafficManager, peer: str, region: RegionHandle) -> None:
    source = np.zeros(BATCH_BYTES, np.uint8).data
    batch = [
        RegionWrite(source[start : start + PIECE_BYTES], region, start) for start in range(0, BATCH_BYTES, PIECE_BYTES)
    ]
    while True:
        try:
            await traffic.send(peer, batch, engine=0, lane=Lane.LOAD, deadline_s=DEADLINE_S)
        except TransferError:
            await asyncio.sleep(0.1)  # it has not started, or has ended


async def _answer(traffic: TrafficManager) -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        arrived = sum(lane.bytes for lane in traffic.stats().lanes if lane.lane is Lane.LOAD)
        print(arrived, flush=True)


def run() -> None:
    """Entry point."""
    _define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
