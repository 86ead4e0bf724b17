"""A card or a memory, as a queue: what is sent passes at the link's rate, first in first out."""

from typing import final


@final
class Link:
    """`rate` bytes a second. What is sent is through at a time that is known when it is sent.

    After a rest, `burst_bytes` pass at once: the card is a token bucket of that depth.
    """

    __slots__ = ("_burst_s", "_free_s", "busy_s", "rate", "total_bytes")

    def __init__(self, rate: float, burst_bytes: int = 0) -> None:
        self.rate = rate
        self._burst_s = burst_bytes / rate
        self.total_bytes = 0
        self.busy_s = 0.0
        self._free_s = 0.0

    def send(self, now: float, count_bytes: int) -> float:
        """When the last of these bytes is through."""
        seconds = count_bytes / self.rate
        free_s, rested_s = self._free_s, now - self._burst_s
        self._free_s = finish = (rested_s if rested_s > free_s else free_s) + seconds
        self.total_bytes += count_bytes
        self.busy_s += seconds
        return finish if finish > now else now

    def waiting_bytes(self, now: float) -> float:
        """What was sent and is not through."""
        left_s = self._free_s - now
        return left_s * self.rate if left_s > 0 else 0.0
