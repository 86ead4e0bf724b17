"""One NIXL agent with UCX beneath it: memory that it knows, writes that it carries, and the end of both.

An agent is the unit that can be stopped. Releasing a write that is under way does not end it (UCX goes on reading its
source), and only the end of the agent that receives them keeps bytes that lie in its sockets from their destination. So
agents are replaced where something must certainly have ended (`nixl_lane.py`).
"""

import asyncio
import contextlib
import ctypes
import importlib
import pathlib
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, final

import numpy as np

from dualpath_jax.transfer.nixl_memory import Extent, KnownMemory, MemoryConflictError

WAKE_US = 10_000
"""UCX's thread sleeps until its sockets wake it, and looks by itself that often; with 0 it would never sleep."""

FIRST_POLL_S, LAST_POLL_S = 0.001, 0.002
"""Between two looks at the writes under way: doubled while none ends. The event loop's timers are of a millisecond."""

INFINIBAND = pathlib.Path("/sys/class/infiniband")
PACKAGES = ("nixl_cu12", "nixl_cu13")


class AgentGoneError(Exception):
    """The agent was closed while it carried this write: post it again on the next one."""


class PeerGoneError(Exception):
    """The other agent ended the connection, or was never there."""


def nixl_bindings() -> ModuleType:
    """NIXL's module. Raises ImportError that says how to get it."""
    _leave_out_infiniband()
    reasons = []
    for package in PACKAGES:
        try:
            return importlib.import_module(f"{package}._bindings")
        except ImportError as error:
            reasons.append(str(error))
    raise ImportError(
        f"NIXL is not installed ({'; '.join(reasons)}): `pip install --no-deps nixl-cu12`, without its dependency on "
        'torch, which it does not need; or set network.transport = "grpc"'
    )


def _leave_out_infiniband() -> None:
    """Where there is no such card, unless the environment says which modules UCX is to load.

    UCX's modules for it bring a second copy of the machine's own libraries, and with both of them a process crashes as
    it exits. UCX takes this setting from the C environment alone.
    """
    if sys.platform.startswith("linux") and not INFINIBAND.exists():
        ctypes.CDLL(None).setenv(b"UCX_MODULES", b"^ib", 0)


@final
class Put:
    """One posted write. `done` ends once NIXL reads its source no more, with an error where it did not arrive."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, error: Exception | None) -> None:
        """End it once."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # it may be that nobody asks


@final
class NixlAgent:
    """`options` are UCX's (without `UCX_`; variables of the environment go before them).

    Raises ImportError without NIXL and RuntimeError where UCX does not start. Methods are called from one event loop.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        nixl = self._nixl = nixl_bindings()
        config = nixl.nixlAgentConfig()
        config.useProgThread, config.pthrDelay = True, WAKE_US
        config.useListenThread = False
        config.syncMode = nixl.NIXL_THREAD_SYNC_NONE
        self.name = secrets.token_hex(8)
        engine_config = ",".join(f"{key}={value}" for key, value in options.items())
        try:
            self._agent: Any = nixl.nixlAgent(self.name, config)
            self._backend = [self._agent.createBackend("UCX", {"engine_config": engine_config})]
        except Exception as error:
            self._agent = None
            raise RuntimeError(f"UCX does not start ({engine_config}): {error}") from error
        self._memory = KnownMemory()
        self.version = 0
        """Counts the extents that `metadata` tells of."""
        self._remotes: dict[str, bytes] = {}
        self._puts: dict[int, Put] = {}  # by NIXL's handle
        self._poll_s = FIRST_POLL_S
        self._timer: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._agent is None

    @property
    def metadata(self) -> bytes:
        """What a peer needs to write to the memory that this agent knows."""
        self._memory.tell()
        return bytes(self._agent.getLocalMD())

    def cover(self, views: Iterable[memoryview]) -> bool:
        """Make the memory that these views lie in known to NIXL; False where only a new agent can."""
        try:
            new, gone = self._memory.learn(views)
        except MemoryConflictError:
            return False
        for extent in gone:
            self._agent.deregisterMem(self._registration(extent), self._backend)
        for extent in new:
            self._agent.registerMem(self._registration(extent), self._backend)
            self.version += 1
        return True

    def meet(self, name: str, metadata: bytes) -> None:
        """Learn of another agent, or of memory that it covers now. Raises PeerGoneError for what is no metadata."""
        if self._remotes.get(name) == metadata:
            return
        try:
            self._agent.loadRemoteMD(metadata)
        except Exception as error:
            raise PeerGoneError(f"the metadata of the peer's NIXL agent cannot be used: {error}") from error
        self._remotes[name] = metadata

    def forget(self, name: str) -> None:
        """Drop the connection to another agent. What is under way to it fails."""
        if self._remotes.pop(name, None) is not None and not self.closed:
            with contextlib.suppress(Exception):
                self._agent.invalidateRemoteMD(name)

    def put(self, name: str, sources: Sequence[int], targets: Sequence[int], sizes_bytes: Sequence[int]) -> Put:
        """Post one write of many pieces, given by their addresses, with one submission. Raises PeerGoneError."""
        put, nixl = Put(name), self._nixl
        try:
            handle = self._agent.createXferReq(
                nixl.NIXL_WRITE,
                self._pieces(sources, sizes_bytes),
                self._pieces(targets, sizes_bytes),
                name,
                b"",
                self._backend,
            )
        except Exception as error:
            raise PeerGoneError(f"NIXL does not take the write: {error}") from error
        self._puts[handle] = put
        try:
            state = self._agent.postXferReq(handle, b"")
        except Exception as error:
            self._end(handle, PeerGoneError(f"NIXL does not post the write: {error}"))
            return put
        if state == nixl.NIXL_SUCCESS:
            self._end(handle, None)
        else:
            self._poll_soon()
        return put

    def close(self) -> None:
        """Stop: when this returns, none of its memory is read or written any more. Safe to call twice."""
        if self.closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        for handle in [*self._puts]:
            self._end(handle, AgentGoneError())
        self._agent = None
        self._memory = KnownMemory()

    def _registration(self, extent: Extent) -> Any:
        return self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(extent.address, extent.size_bytes, 0, "")])

    def _pieces(self, addresses: Sequence[int], sizes_bytes: Sequence[int]) -> Any:
        table = np.zeros((len(addresses), 3), np.uint64)  # the third column is the device
        table[:, 0], table[:, 1] = addresses, sizes_bytes
        return self._nixl.nixlXferDList(self._nixl.DRAM_SEG, table)

    def _poll_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._poll_s = FIRST_POLL_S
        if self._timer is None or self._timer.when() > loop.time() + FIRST_POLL_S:
            self._poll_in(FIRST_POLL_S)

    def _poll_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._poll)

    def _poll(self) -> None:
        before = len(self._puts)
        for handle in [*self._puts]:
            try:
                if self._agent.getXferStatus(handle) == self._nixl.NIXL_SUCCESS:
                    self._end(handle, None)
            except Exception as error:
                self._end(handle, PeerGoneError(f"NIXL: {error}"))
        self._poll_s = FIRST_POLL_S if len(self._puts) < before else min(2 * self._poll_s, LAST_POLL_S)
        self._timer = None
        if self._puts:
            self._poll_in(self._poll_s)

    def _end(self, handle: int, error: Exception | None) -> None:
        put = self._puts.pop(handle)
        with contextlib.suppress(Exception):
            self._agent.releaseXferReq(handle)
        put.finish(error)
