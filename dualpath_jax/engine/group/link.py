"""One process's end of the stream to another process of its group: frames both ways, and whether the other lives."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import final

import grpc

from dualpath_jax.engine.group import group_pb2 as pb

OnLost = Callable[[str], None]
"""Told once, from any thread, which process is gone and why. Ends the process: a collective cannot be interrupted."""


class GroupLost(RuntimeError):  # noqa: N818 - the name of what happened
    """Another process of the group is gone, and the group with it."""


@final
class Link:
    """The stream to the process that `name` calls.

    It counts as lost where the stream ends before that is expected, where nothing has been heard for `silence_s` (both
    sides say four times as often that they live, whatever their engines are doing), and where an answer is overdue.
    """

    def __init__(self, name: str, *, silence_s: float, on_lost: OnLost) -> None:
        self.name = name
        self._silence_s = silence_s
        self._on_lost = on_lost
        self._outgoing: queue.SimpleQueue[pb.Frame | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[pb.Frame | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._due = float("inf")
        self._over = threading.Event()
        self._end_expected = False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name=f"watch {name}").start()

    def send(self, frames: Iterable[pb.Frame], *, answer_within_s: float | None = None) -> None:
        """Queue frames; with `answer_within_s`, the other is lost where it does not answer the last of them in time."""
        for frame in frames:
            self._outgoing.put(frame)
        if answer_within_s is not None:
            self._due = time.monotonic() + answer_within_s

    def receive(self) -> tuple[pb.Frame, list[pb.Piece]]:
        """Wait for the next frame that is no piece; returns it and the pieces before it. Raises GroupLost."""
        pieces = []
        while True:
            frame = self._incoming.get()
            if frame is None:
                self._incoming.put(None)
                raise GroupLost(f"the stream to {self.name} has ended")
            if frame.HasField("piece"):
                pieces.append(frame.piece)
                continue
            self._due = float("inf")
            return frame, pieces

    def outgoing(self) -> Iterator[pb.Frame]:
        """What gRPC is to send, until the link is closed or lost."""
        while True:
            try:
                frame = self._outgoing.get(timeout=self._silence_s / 4)
            except queue.Empty:
                frame = pb.Frame()
            if frame is None:
                return
            yield frame

    def pump(self, incoming: Iterable[pb.Frame]) -> None:
        """Take in what gRPC receives, until the stream ends: then the other is lost, unless the link was closed."""
        reason = "its stream has ended"
        try:
            for frame in incoming:
                self._heard = time.monotonic()
                if frame.WhichOneof("body") is not None:
                    self._incoming.put(frame)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.details():
                reason = f"{error.code().name}: {error.details()}"
        self._lost(reason)

    def expect_end(self) -> None:
        """From now on the end of the stream is no loss."""
        self._end_expected = True

    def close(self) -> None:
        """Say nothing more than what is queued, and expect nothing more. Safe to call twice."""
        self.expect_end()
        self._end()

    def _end(self) -> bool:
        """Returns whether this was the first end."""
        with self._lock:
            first = not self._over.is_set()
            self._over.set()
        if first:
            self._outgoing.put(None)
            self._incoming.put(None)
        return first

    def _lost(self, reason: str) -> None:
        if self._end() and not self._end_expected:
            self._on_lost(f"lost {self.name}: {reason}")

    def _watch(self) -> None:
        while not self._over.wait(self._silence_s / 8):
            now = time.monotonic()
            if now > self._heard + self._silence_s:
                self._lost(f"nothing was heard for {self._silence_s:g} s")
            elif now > self._due:
                self._lost("an answer is overdue")
