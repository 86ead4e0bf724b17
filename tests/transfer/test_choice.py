"""Which transport a node takes, and how nodes that took different ones get along."""

import contextlib
import logging

import grpc
import numpy as np
import pytest

from dualpath_configs import NetworkSpec
from dualpath_jax.transfer import Failure, GrpcTransport, Lane, NixlTransport, choice, make_transport, nixl_agent
from dualpath_jax.transfer.choice import EitherTransport
from dualpath_jax.transfer.endpoint import stop_server
from tests.transfer.conftest import assert_no_tasks_left, needs_nixl
from tests.transfer.testbed import MIB, failure_of, pieces, random_bytes


@contextlib.asynccontextmanager
async def nodes(*kinds):
    """A transport of each kind, on a server of its own."""
    servers, made = [], []
    try:
        for kind in kinds:
            servers.append(grpc.aio.server())
            made.append(make_transport(NetworkSpec(transport=kind), bind="127.0.0.1:0", server=servers[-1]))
            await servers[-1].start()
            await made[-1].start()
        yield made
    finally:
        for transport in made:
            await transport.close()
        for server in servers:
            await stop_server(server, grace_s=None)
    assert_no_tasks_left()


@pytest.fixture
def without_nixl(monkeypatch):
    monkeypatch.setattr(nixl_agent, "PACKAGES", ("no_such_nixl",))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger=choice.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == choice.__name__]


async def check_both_ways(one, other):
    for sender, receiver in [(one, other), (other, one)]:
        memory, source = np.zeros(MIB, np.uint8), random_bytes(MIB)
        handle = receiver.register([memory.data])
        await sender.write(receiver.address, pieces(source, handle, 32768), lane=Lane.LOAD, deadline_s=10)
        assert (memory == source).all()
        await receiver.deregister(handle)
        error = await failure_of(
            sender.write(receiver.address, pieces(source, handle, 32768), lane=Lane.LOAD, deadline_s=10)
        )
        assert error.failure is Failure.REFUSED


async def test_grpc_is_taken_where_the_spec_says_so(lines):
    async with nodes("grpc", "grpc") as (one, other):
        assert isinstance(one, GrpcTransport)
        await check_both_ways(one, other)
    assert lines() == []


@pytest.mark.usefixtures("without_nixl")
async def test_auto_without_nixl_is_grpc_and_says_why(lines):
    async with nodes("auto") as (transport,):
        assert isinstance(transport, GrpcTransport)
    (line,) = lines()
    assert line.startswith("transport grpc: NIXL is not installed")
    assert "pip install --no-deps nixl-cu12" in line


@pytest.mark.usefixtures("without_nixl")
async def test_nixl_that_is_demanded_and_missing_is_an_error_that_says_how_to_get_it():
    with pytest.raises(OSError, match=r"network\.transport = 'nixl': NIXL is not installed .*pip install"):
        async with nodes("nixl"):
            pass


@needs_nixl
async def test_nixl_is_taken_where_the_spec_says_so():
    async with nodes("nixl", "nixl") as (one, other):
        assert isinstance(one, NixlTransport)
        await check_both_ways(one, other)


@needs_nixl
async def test_auto_writes_by_nixl_to_peers_that_have_it_and_by_grpc_to_the_others(lines):
    async with nodes("auto", "auto", "grpc") as (one, other, plain):
        assert isinstance(one, EitherTransport)
        await check_both_ways(one, other)
        await check_both_ways(one, plain)
        assert one._nixl._sending[Lane.LOAD].replaced == 0
        assert one._without == {plain.address}
        said = lines()
    assert said.count(f"transport grpc with {plain.address}: it does not offer NIXL") == 1
    assert said[0].startswith("transport nixl: it is installed and UCX starts")


@needs_nixl
async def test_nodes_that_were_told_different_transports_say_so():
    async with nodes("nixl", "grpc") as (one, plain):
        memory = np.zeros(MIB, np.uint8)
        batch = pieces(np.ones(MIB, np.uint8), plain.register([memory.data]), MIB)
        error = await failure_of(one.write(plain.address, batch, lane=Lane.LOAD, deadline_s=10))
    assert error.failure is Failure.NOT_OFFERED
    assert "set network.transport alike on all nodes" in str(error)
