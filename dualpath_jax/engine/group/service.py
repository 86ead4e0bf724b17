"""Where the followers of an engine group come to: the leader's end of their streams."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, final

import grpc

from dualpath_jax.engine.group import group_pb2 as pb
from dualpath_jax.engine.group import group_pb2_grpc
from dualpath_jax.engine.group.leader import RemoteEngines
from dualpath_jax.engine.group.link import GroupLost, Link, LinkSettings
from dualpath_jax.engine.group.messages import MESSAGE_OPTIONS, PROCESS
from dualpath_jax.transfer.endpoint import OWN_PORT


@final
class LeaderService(group_pb2_grpc.LeaderServicer):
    """Listens on two free ports of `host` until `close`, for processes 1 to `processes` - 1, each of which comes once.

    Raises OSError where it cannot listen there.
    """

    def __init__(self, host: str, settings: LinkSettings, *, processes: int) -> None:
        self._settings = settings
        self._processes = processes
        self._links: dict[int, Link] = {}
        self._whole: set[int] = set()
        self._refusal = ""
        self._changed = threading.Condition()
        self._servers: list[grpc.Server] = []
        name = f"[{host}]" if ":" in host else host
        self.addresses = " ".join(self._listen(name, dscp) for dscp in (settings.call_dscp, settings.piece_dscp))
        """Where `Follow` and `Carry` are listened for, in this order."""

    def _listen(self, host: str, dscp: int) -> str:
        options = (*MESSAGE_OPTIONS, OWN_PORT, ("grpc.dscp", dscp))
        server = grpc.server(ThreadPoolExecutor(self._processes, thread_name_prefix="followers"), options=options)
        group_pb2_grpc.add_LeaderServicer_to_server(self, server)
        try:
            port = server.add_insecure_port(f"{host}:0")
        except RuntimeError as error:
            raise OSError(f"the leader of a group cannot listen on {host}: {error}") from error
        server.start()
        self._servers.append(server)
        return f"{host}:{port}"

    def Follow(self, request_iterator: Iterator[pb.Frame], context: Any) -> Iterator[pb.Frame]:  # noqa: N802
        """One follower's stream of calls."""
        hello = next(request_iterator, pb.Frame()).hello
        link = self._welcome(hello, context)
        threading.Thread(target=link.pump_frames, args=(request_iterator,), daemon=True, name=link.name).start()
        yield from link.outgoing_frames()

    def Carry(self, request_iterator: Iterator[pb.Piece], context: Any) -> Iterator[pb.Piece]:  # noqa: N802
        """The same follower's stream of pieces."""
        process = int(dict(context.invocation_metadata())[PROCESS])
        with self._changed:
            self._changed.wait_for(lambda: process in self._links or self._refusal, self._settings.silence_s)
            if process not in self._links:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._refusal or f"process {process} is unknown")
            link = self._links[process]
            self._whole.add(process)
            self._changed.notify_all()
        threading.Thread(target=link.pump_pieces, args=(request_iterator,), daemon=True, name=link.name).start()
        yield from link.outgoing_pieces()

    def _welcome(self, hello: pb.Hello, context: Any) -> Link:
        with self._changed:
            if hello.config_digest != self._settings.config_digest:
                self._refuse(f"process {hello.process} has another config than process 0: expected the same", context)
            if hello.process in self._links or not 0 < hello.process < self._processes:
                self._refuse(f"process {hello.process}: expected 1 to {self._processes - 1}, each once", context)
            link = Link(f"process {hello.process}", self._settings)
            self._links[hello.process] = link
            self._changed.notify_all()
        return link

    def _refuse(self, why: str, context: Any) -> NoReturn:
        self._refusal = why
        self._changed.notify_all()
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        raise AssertionError("abort raises")

    def followers(self, engines: int, *, deadline_s: float) -> list[RemoteEngines]:
        """Wait for all followers; each has the same share of `engines`.

        Raises GroupLost at the deadline, and where one that came was refused.
        """
        end, share = time.monotonic() + deadline_s, engines // self._processes
        with self._changed:
            while len(self._whole) < self._processes - 1 or self._refusal:
                if self._refusal:
                    raise GroupLost(self._refusal)
                if not self._changed.wait(end - time.monotonic()):
                    missing = sorted({*range(1, self._processes)} - self._whole)
                    raise GroupLost(f"processes {missing} of the group have not come within {deadline_s:g} s")
            return [
                RemoteEngines(link, range(process * share, (process + 1) * share))
                for process, link in sorted(self._links.items())
            ]

    def close(self) -> None:
        """End all streams; to the followers that is no loss only after the group was closed."""
        for link in self._links.values():
            link.close()
        for server in self._servers:
            server.stop(grace=1.0).wait()
