"""Transports of every kind, in this process and in others; each test must leave no task behind."""

import asyncio
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from dualpath_jax.transfer import GrpcTransport, Lane, NixlTransport, RegionHandle
from dualpath_jax.transfer.nixl_agent import nixl_bindings

LANE_DSCP = {Lane.LOAD: 8, Lane.STORE: 10}


def why_no_nixl():
    try:
        nixl_bindings()
    except ImportError as error:
        return str(error)
    return ""


needs_nixl = pytest.mark.skipif(bool(why_no_nixl()), reason=why_no_nixl() or "NIXL is installed")
KINDS = {"grpc": GrpcTransport, "nixl": NixlTransport}


@pytest.fixture(
    params=["grpc", pytest.param("nixl", marks=needs_nixl), pytest.param("nixl over shared memory", marks=needs_nixl)]
)
def kind(request, monkeypatch):
    if request.param == "nixl over shared memory":
        monkeypatch.setenv("UCX_TLS", "tcp,cma,self")
        return "nixl"
    return request.param


@pytest.fixture
async def make_transport(kind):
    """A factory of started transports: `await make_transport(bind=..., gate=...)`."""
    made = []

    async def make(bind="127.0.0.1:0", gate=None):
        transport = KINDS[kind](bind=bind, lane_dscp=LANE_DSCP, gate=gate)
        await transport.start()
        made.append(transport)
        return transport

    yield make
    for transport in made:
        await transport.close()
    assert_no_tasks_left()


def assert_no_tasks_left():
    """gRPC's own tasks (its server's, and calls that wind down) aside."""
    ours = [task for task in asyncio.all_tasks() if "dualpath_jax" in str(task.get_coro())]
    assert not ours, ours


class PeerProcess:
    """A peer that can be frozen and killed."""

    def __init__(self, kind, bind="127.0.0.1:0", region_bytes=1 << 20):
        script = pathlib.Path(__file__).with_name("peer_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), kind, bind, str(region_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "UCX_LOG_FILE": "stderr"},  # by default UCX writes to stdout
            text=True,
        )
        line = json.loads(self.process.stdout.readline())
        self.address = line["address"]
        self.handle = RegionHandle(**line["handle"])

    def digest(self):
        return self.ask("digest")

    def values(self):
        return json.loads(self.ask("values"))

    def write_on(self, address, handle):
        self.ask("write " + json.dumps({"address": address, "handle": dataclasses.asdict(handle)}))

    def outcome(self):
        return self.ask("outcome")

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peer_process(kind):
    """A factory of peer processes, all gone after the test."""
    made = []

    def make(**arguments):
        made.append(PeerProcess(kind, **arguments))
        return made[-1]

    yield make
    for peer in made:
        peer.close()
