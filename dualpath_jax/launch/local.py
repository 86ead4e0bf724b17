"""A cluster on this machine: one scheduler, prefill and decode nodes, each a process of its own."""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, final

from dualpath_configs import ClusterSpec, SpecError, load_cluster
from dualpath_configs.resolved import write_resolved
from dualpath_jax.cluster.node_query import node_stats
from dualpath_jax.cluster.peer_pb2 import StatsReply
from dualpath_jax.launch.node_processes import Keeper, NodeProcesses
from dualpath_jax.launch.processes import HERE, POLL_S, ClusterError, Place, RoleProcess, interrupt_deferred
from dualpath_jax.rollout import Client, Session

START_S = 180.0


@final
class LocalCluster:
    """A context manager: the processes start on entry and are gone on exit, after Ctrl-C and a crash as well.

    `spec` is a cluster spec or the name of a preset. Where `storage.url` is empty, blocks are kept in a temporary
    folder that goes with the cluster; a `file://` URL is kept, and found again by the next cluster. Nodes emulate
    their engines on the CPU unless `platform` names another. A node of several processes (`processes_per_node`) that
    loses one of them is started anew. `place` says by name where each process
    runs.

    Raises SpecError for storage that processes cannot share, and ClusterError where a process does not come up, with
    the last line of its log.
    """

    def __init__(
        self,
        spec: ClusterSpec | str = "local_1p1d",
        *,
        platform: str = "cpu",
        compilation_cache: str = "",
        place: Callable[[str], Place] = lambda name: HERE,
    ) -> None:
        self.spec = load_cluster(spec) if isinstance(spec, str) else spec
        if self.spec.storage.in_process_memory:
            raise SpecError(
                f"storage.url = {self.spec.storage.url!r}: processes share no memory; use file:///folder, or leave it "
                "empty for a temporary folder"
            )
        self._flags = [f"--platform={platform}", f"--compilation_cache={compilation_cache}"]
        self._place = place
        self._stack = ExitStack()
        self._scheduler: RoleProcess | None = None
        self._nodes: list[NodeProcesses] = []
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The cluster's client. Raises ClusterError outside the `with` block."""
        if self._client is None:
            raise ClusterError("the cluster is not running: use it in a with block")
        return self._client

    @property
    def processes(self) -> dict[str, RoleProcess]:
        """By name: `scheduler`, `prefill-0`, ..., `decode-0`, ...; a node's further processes are `decode-0.1`, ..."""
        alone = [self._scheduler] if self._scheduler is not None else []
        return {process.name: process for process in [*alone, *(p for node in self._nodes for p in node.processes)]}

    def session(self, *, tenant_salt: str = "") -> Session:
        """A new session."""
        return self.client.session(tenant_salt=tenant_salt)

    def kill(self, name: str) -> None:
        """End a process as a crash would."""
        self.processes[name].kill()

    def stats(self) -> dict[str, StatsReply]:
        """What passed the cards of each node that lives and answers."""
        replies = {}
        for node in self._nodes:
            if node.leader.running and node.leader.ready:
                with suppress(ConnectionError):
                    replies[node.name] = node_stats(node.leader.address(deadline_s=0.0))
        return replies

    def wait_until_stored(self, *, deadline_s: float = 30.0) -> None:
        """Wait until no node has a block on its way to storage. Raises ClusterError at the deadline."""
        end = time.monotonic() + deadline_s
        while pending := sum(reply.pending_blocks for reply in self.stats().values()):
            if time.monotonic() > end:
                raise ClusterError(f"{pending} blocks are not stored after {deadline_s:g} s")
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        self._client = None

    def _start(self) -> None:
        with interrupt_deferred():
            folder = Path(tempfile.mkdtemp(prefix="dualpath-"))
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if not self.spec.storage.url:
            storage = self.spec.storage.model_copy(update={"url": f"file://{folder / 'kv'}"})
            self.spec = self.spec.model_copy(update={"storage": storage})
        config = folder / "cluster.json"
        write_resolved(self.spec, config)
        self._stack.callback(self._stop)
        # A parent that is killed cannot clean up itself.
        common = [f"--config={config}", *self._flags]
        with interrupt_deferred():
            flags = ["--role=scheduler", *common, f"--orphans_remove={folder}"]
            self._scheduler = RoleProcess("scheduler", flags, folder, self._place("scheduler"))
        address = self._scheduler.address(deadline_s=START_S)
        for role, nodes in (("prefill", self.spec.prefill_nodes), ("decode", self.spec.decode_nodes)):
            for node_id in (f"{role}-{index}" for index in range(nodes)):
                flags = [f"--role={role}", f"--node_id={node_id}", f"--scheduler={address}", *common]
                with interrupt_deferred():
                    count = self.spec.processes_per_node
                    self._nodes.append(NodeProcesses(node_id, flags, folder, count=count, place=self._place))
        for node in self._nodes:
            node.wait_ready(deadline_s=START_S)
        if groups := [node for node in self._nodes if node.is_group]:
            self._stack.callback(Keeper(groups).close)
        self._client = self._stack.enter_context(Client(address))
        self._client.wait_ready(self.spec.prefill_nodes, self.spec.decode_nodes, deadline_s=START_S)

    def _stop(self) -> None:
        """Nodes first, so that they can say good-bye, with their leaders before the others; the scheduler last."""
        for node in self._nodes:
            node.leader.ask_to_stop()
        for node in self._nodes:
            for process in node.processes:
                process.stop()
        if self._scheduler is not None:
            self._scheduler.stop()
