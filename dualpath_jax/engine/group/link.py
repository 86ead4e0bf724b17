"""One process's end of the streams to another process of its group: what is said, and whether the other lives."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, final

import grpc

from dualpath_jax.engine.group import group_pb2 as pb

T = TypeVar("T")

OnLost = Callable[[str], None]
"""Told once, from any thread, which process is gone and why. Ends the process: a collective cannot be interrupted."""


@final
@dataclass(frozen=True)
class LinkSettings:
    """What all processes of a group agree on, and what each does when it loses one.

    Calls and answers travel with the DSCP `call_dscp`, which is the lane of the model's collectives: a step waits for
    them. Pieces are KV, and travel with `piece_dscp`.
    """

    config_digest: bytes
    silence_s: float
    on_lost: OnLost
    call_dscp: int = 0
    piece_dscp: int = 0


class GroupLost(RuntimeError):  # noqa: N818 - the name of what happened
    """Another process of the group is gone, and the group with it."""


@final
class Link:
    """The streams to the process that `name` calls.

    It counts as lost where a stream ends before that is expected, where nothing has been heard for `silence_s` (both
    sides say four times as often that they live, whatever their engines are doing), and where an answer is overdue.
    """

    def __init__(self, name: str, settings: LinkSettings) -> None:
        self.name = name
        self._silence_s = settings.silence_s
        self._on_lost = settings.on_lost
        self._frames_out: queue.SimpleQueue[pb.Frame | None] = queue.SimpleQueue()
        self._frames_in: queue.SimpleQueue[pb.Frame | None] = queue.SimpleQueue()
        self._pieces_out: queue.SimpleQueue[pb.Piece | None] = queue.SimpleQueue()
        self._pieces_in: queue.SimpleQueue[pb.Piece | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._due = float("inf")
        self._over = threading.Event()
        self._end_expected = False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name=f"watch {name}").start()

    def send(self, frame: pb.Frame, pieces: Iterable[pb.Piece] = (), *, answer_within_s: float | None = None) -> None:
        """Queue a frame and the pieces that belong to it; with `answer_within_s`, the other is to answer in time."""
        for piece in pieces:
            self._pieces_out.put(piece)
            frame.pieces += 1
        self._frames_out.put(frame)
        if answer_within_s is not None:
            self._due = time.monotonic() + answer_within_s

    def receive(self) -> tuple[pb.Frame, list[pb.Piece]]:
        """Wait for the next frame and the pieces that belong to it. Raises GroupLost."""
        frame = self._taken(self._frames_in)
        pieces = [self._taken(self._pieces_in) for _ in range(frame.pieces)]
        self._due = float("inf")
        return frame, pieces

    def _taken(self, incoming: "queue.SimpleQueue[T | None]") -> T:
        item = incoming.get()
        if item is None:
            incoming.put(None)
            raise GroupLost(f"the stream to {self.name} has ended")
        return item

    def outgoing_frames(self) -> Iterator[pb.Frame]:
        """What gRPC is to send on the stream of calls and answers, until the link is closed or lost."""
        while True:
            try:
                frame = self._frames_out.get(timeout=self._silence_s / 4)
            except queue.Empty:
                frame = pb.Frame()
            if frame is None:
                return
            yield frame

    def outgoing_pieces(self) -> Iterator[pb.Piece]:
        """The same for the stream of pieces."""
        while (piece := self._pieces_out.get()) is not None:
            yield piece

    def pump_frames(self, incoming: Iterable[pb.Frame]) -> None:
        """Take in what gRPC receives, until the stream ends: then the other is lost, unless that was expected."""
        with self._lost_in_the_end():
            for frame in incoming:
                self._heard = time.monotonic()
                if frame.WhichOneof("body") is not None:
                    self._frames_in.put(frame)

    def pump_pieces(self, incoming: Iterable[pb.Piece]) -> None:
        """The same for the stream of pieces."""
        with self._lost_in_the_end():
            for piece in incoming:
                self._heard = time.monotonic()
                self._pieces_in.put(piece)

    @contextlib.contextmanager
    def _lost_in_the_end(self) -> Iterator[None]:
        reason = "its stream has ended"
        try:
            yield
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
            for ended in (self._frames_out, self._frames_in, self._pieces_out, self._pieces_in):
                ended.put(None)
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
