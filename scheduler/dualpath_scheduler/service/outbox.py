"""What waits to be fetched by a node; sent again until the node says that it has it."""

from typing import final

from dualpath_scheduler.service import scheduler_pb2 as pb


@final
class Outbox:
    """Assignments and cancellations of one node, in order, with serials that grow.

    A reply that is lost on its way loses nothing: a message stays until a later fetch acknowledges its serial.
    """

    def __init__(self, last_serial: int) -> None:
        self._last_serial = last_serial
        self._messages: list[pb.Assignment | pb.Cancellation] = []
        self._sent_serial = last_serial

    def __bool__(self) -> bool:
        return bool(self._messages)

    def assign(self, assignment: pb.Assignment) -> int:
        """Adds an assignment and returns the serial that it was given."""
        assignment.serial = self._append(assignment)
        return assignment.serial

    def cancel(self, request_id: str, attempt: int, reason: str) -> None:
        """Tells the node to drop an attempt; one that was never sent is taken back instead."""
        for message in self._messages:
            unsent = isinstance(message, pb.Assignment) and message.serial > self._sent_serial
            if unsent and (message.request_id, message.attempt) == (request_id, attempt):
                self._messages.remove(message)
                return
        cancellation = pb.Cancellation(request_id=request_id, attempt=attempt, reason=reason)
        cancellation.serial = self._append(cancellation)

    def acknowledge(self, serial: int) -> None:
        """Forgets messages up to this serial: the node has them."""
        self._messages = [message for message in self._messages if message.serial > serial]

    def take(self) -> pb.FetchReply:
        """All that is not acknowledged yet."""
        self._sent_serial = self._last_serial
        return pb.FetchReply(
            assignments=[message for message in self._messages if isinstance(message, pb.Assignment)],
            cancellations=[message for message in self._messages if isinstance(message, pb.Cancellation)],
        )

    def _append(self, message: pb.Assignment | pb.Cancellation) -> int:
        self._last_serial += 1
        self._messages.append(message)
        return self._last_serial
