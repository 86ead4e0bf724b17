"""A peer in a process of its own, for tests that stop or kill it: `peer_process.py KIND BIND REGION_BYTES`.

Prints one line of JSON, its address and its region's handle; then for every line on stdin one line:

    digest            the region's bytes as a digest
    values            the values that its bytes have
    write HANDLE      begins to write ones to a peer's region, whole and again and again
    outcome           how that ended, once it has
"""

import asyncio
import dataclasses
import hashlib
import json
import sys

import numpy as np

from dualpath_jax.transfer import (
    GrpcTransport,
    Lane,
    NixlTransport,
    RegionHandle,
    RegionWrite,
    TransferError,
    Transport,
)


def make(kind: str, bind: str) -> Transport:
    if kind == "grpc":
        return GrpcTransport(bind=bind, lane_dscp={})
    if kind == "nixl":
        return NixlTransport(bind=bind, lane_dscp={})
    raise ValueError(f"transport kind {kind!r}: expected 'grpc' or 'nixl'")


async def write_on(transport: Transport, address: str, handle: RegionHandle) -> str:
    ones = np.ones(handle.size_bytes, np.uint8).data
    while True:
        try:
            await transport.write(address, [RegionWrite(ones, handle, 0)], lane=Lane.LOAD, deadline_s=30)
        except TransferError as error:
            return error.failure.name


async def main(kind: str, bind: str, region_bytes: int) -> None:
    transport = make(kind, bind)
    await transport.start()
    memory = np.zeros(region_bytes, np.uint8)
    handle = transport.register([memory.data])
    print(json.dumps({"address": transport.address, "handle": dataclasses.asdict(handle)}), flush=True)
    writing = None
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        command, _, argument = line.strip().partition(" ")
        answer = ""
        if command == "digest":
            answer = hashlib.sha256(memory).hexdigest()
        elif command == "values":
            answer = json.dumps(np.unique(memory).tolist())
        elif command == "write":
            target = json.loads(argument)
            writing = asyncio.create_task(write_on(transport, target["address"], RegionHandle(**target["handle"])))
        elif command == "outcome" and writing is not None:
            answer = await writing
        print(answer, flush=True)
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
