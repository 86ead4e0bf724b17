"""A peer in a process of its own, for tests that stop or kill it: `peer_process.py KIND BIND REGION_BYTES`.

Prints one line of JSON, its address and its region's handle; then for every line on stdin one line: the region's bytes
as a digest.
"""

import asyncio
import dataclasses
import hashlib
import json
import sys

import numpy as np

from dualpath_jax.transfer import GrpcTransport, NixlTransport, Transport


def make(kind: str, bind: str) -> Transport:
    if kind == "grpc":
        return GrpcTransport(bind=bind, lane_dscp={})
    if kind == "nixl":
        return NixlTransport(bind=bind, lane_dscp={})
    raise ValueError(f"transport kind {kind!r}: expected 'grpc' or 'nixl'")


async def main(kind: str, bind: str, region_bytes: int) -> None:
    transport = make(kind, bind)
    await transport.start()
    memory = np.zeros(region_bytes, np.uint8)
    handle = transport.register([memory.data])
    print(json.dumps({"address": transport.address, "handle": dataclasses.asdict(handle)}), flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        print(hashlib.sha256(memory).hexdigest(), flush=True)
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
