"""The event loop: a handler is called at its time and returns what follows from it."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

Event = tuple[float, Callable[[float, Any], Iterable["Event"]], Any]
"""When it happens, what handles it, and what it is about. All times are seconds since the start of the run."""


def run_events(first: Iterable[Event]) -> float:
    """Handles events in order of time until none is left; returns the time of the last one.

    Of events at one time, the one that was returned first is first. Raises ValueError for an event in the past.
    """
    ordinals = itertools.count()
    waiting = [(time_s, next(ordinals), handle, about) for time_s, handle, about in first]
    heapq.heapify(waiting)
    now = 0.0
    while waiting:
        now, _, handle, about = heapq.heappop(waiting)
        for time_s, handle_next, about_next in handle(now, about):
            if time_s < now:
                raise ValueError(f"an event at {time_s} s follows from one at {now} s: expected none in the past")
            heapq.heappush(waiting, (time_s, next(ordinals), handle_next, about_next))
    return now
