"""A whole testbed: namespaces, networks with the rates of a spec, and an S3 server; gone in the end."""

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self, final

from dualpath_configs import ClusterSpec, SpecError
from dualpath_jax.launch.processes import Place, interrupt_deferred
from dualpath_jax.testbed.counters import Counters, read_counters
from dualpath_jax.testbed.namespaces import Namespaces, inside
from dualpath_jax.testbed.plan import CONTROL, STORAGE, SWITCH, Host, Network, plan_hosts
from dualpath_jax.testbed.seaweedfs import CREDENTIALS, SeaweedServer, find_weed
from dualpath_jax.testbed.wires import connect, set_link, shape


def with_link_rate(spec: ClusterSpec, bytes_per_s: float) -> ClusterSpec:
    """The spec with this rate for all cards."""
    network = spec.network.model_copy(update={"cnic_bytes_per_s": bytes_per_s, "snic_bytes_per_s": bytes_per_s})
    return spec.model_copy(update={"network": network})


@final
class NetworkTestbed:
    """A context manager: the machine's own networks are as they were on exit, after Ctrl-C and a crash as well.

    Without `storage` there is no server.

    Raises SpecError where the spec has no rates, NetworkError where this process may not make networks, and
    StorageServerError where the server does not come up.
    """

    def __init__(self, spec: ClusterSpec, *, storage: bool = True) -> None:
        for name in ("snic_bytes_per_s", "cnic_bytes_per_s"):
            if getattr(spec.network, name) is None:
                raise SpecError(f"network.{name} is absent: expected the rate of the testbed's links")
        if spec.storage.url:
            raise SpecError(f"storage.url = {spec.storage.url!r}: expected none, a testbed brings its own storage")
        if storage:
            find_weed()
        self._storage = storage
        self._server: SeaweedServer | None = None
        self._stack = ExitStack()
        self.hosts = plan_hosts(spec)
        self.spec = spec.model_copy(update={"network": spec.network.model_copy(update={"emulated": False})})
        """What the nodes are told: that the network has the rates."""
        addresses = {host.name: host.address(host.networks[-1]) for host in self.hosts}
        self.namespaces = Namespaces({SWITCH: "", **addresses})

    def host(self, name: str) -> Host:
        """The host of this name, such as `prefill-0`."""
        return next(host for host in self.hosts if host.name == name)

    def place(self, name: str) -> Place:
        """Where a process of the cluster runs; a process that is no node is with the scheduler."""
        host = self.host(name if any(name == host.name for host in self.hosts) else CONTROL)
        return Place(self.namespaces.command(host.name), host.address(host.networks[-1]), CREDENTIALS)

    def with_storage(self, prefix: str) -> ClusterSpec:
        """The spec, with an own part of the server for its store."""
        if self._server is None:
            raise RuntimeError("the testbed has no storage server, or does not run")
        storage = self.spec.storage.model_copy(update={"url": self._server.url(prefix)})
        return self.spec.model_copy(update={"storage": storage})

    def inside(self) -> AbstractContextManager[None]:
        """Within, this thread and those that it starts are where the scheduler and its clients are."""
        return inside(self.namespaces.full_name(CONTROL))

    def counters(self) -> Counters:
        """What passed the nodes' cards so far."""
        return read_counters(self.spec.network.lanes, self.hosts, self.namespaces)

    def set_lanes(self, on: bool) -> None:
        """Whether the compute cards tell lanes apart, which they do at first."""
        shape(self.spec, self.hosts, self.namespaces, lanes=on)

    def set_link(self, host: str, network: Network, *, up: bool) -> None:
        """Pull the cable of a host's card, or put it back."""
        set_link(self.namespaces, host, network, up=up)

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
        with interrupt_deferred():
            self._stack.close()

    def _start(self) -> None:
        with interrupt_deferred():
            self._stack.enter_context(self.namespaces)
            connect(self.spec, self.hosts, self.namespaces)
            self.set_lanes(True)
            if self._storage:
                self._server = self._start_server()
        if self._server is not None:
            with self.inside():
                self._server.wait_until_ready()

    def _start_server(self) -> SeaweedServer:
        folder = self.namespaces.folder / "storage"
        folder.mkdir()
        server = SeaweedServer(folder, self.host(STORAGE).address("snic"), self.namespaces.command(STORAGE))
        self._stack.callback(server.close)
        return server
