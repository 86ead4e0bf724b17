"""The event loop and the links."""

import pytest

from dualpath_scheduler.simulator.links import Link
from dualpath_scheduler.simulator.loop import run_events


def test_events_come_in_order_of_time_and_ties_in_order_of_their_return():
    seen = []

    def note(now, what):
        seen.append((now, what))
        return [(now, note, "c"), (now + 1.0, note, "d")] if what == "a" else ()

    assert run_events([(2.0, note, "e"), (1.0, note, "a"), (1.0, note, "b")]) == 2.0
    assert seen == [(1.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "e"), (2.0, "d")]


def test_an_event_in_the_past_is_refused():
    with pytest.raises(ValueError, match=r"an event at 0.5 s follows from one at 1.0 s: expected none in the past"):
        run_events([(1.0, lambda now, _: [(0.5, print, None)], None)])


def test_a_link_is_first_in_first_out():
    link = Link(10.0)
    assert [link.send(0.0, 20), link.send(1.0, 10), link.send(5.0, 10)] == [2.0, 3.0, 6.0]
    assert (link.total_bytes, link.busy_s) == (40, 4.0)
    assert [link.waiting_bytes(5.5), link.waiting_bytes(7.0)] == [5.0, 0.0]
