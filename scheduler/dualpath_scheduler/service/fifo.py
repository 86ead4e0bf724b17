"""A queue in order of arrival, from which anything may be taken and into which anything may return."""

import bisect
from collections.abc import Iterator
from typing import final

from dualpath_scheduler.service.request import Request


@final
class Fifo:
    """Requests by `order`: one that is put back stands again in front of all that arrived after it."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_order)

    def discard(self, request: Request) -> None:
        """Takes a request out; one that is not in here is fine."""
        at = bisect.bisect_left(self._requests, request.order, key=_order)
        if at < len(self._requests) and self._requests[at] is request:
            del self._requests[at]

    def clear(self) -> list[Request]:
        """Takes everything out, in order."""
        taken, self._requests = self._requests, []
        return taken


def _order(request: Request) -> int:
    return request.order
