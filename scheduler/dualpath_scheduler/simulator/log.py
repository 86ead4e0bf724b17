"""What a simulation notes of each request, as arrays."""

from typing import Final, cast, final

import numpy as np

TIMES: Final = (
    "arrival_s",
    "assigned_s",
    "read_start_s",
    "read_end_s",
    "prefill_start_s",
    "first_token_s",
    "end_s",
)
COUNTS: Final = (
    "hit_tokens",
    "prefill_side_tokens",
    "prefill_tier_tokens",
    "decode_tier_tokens",
    "prefill_node",
    "prefill_engine",
    "decode_node",
    "decode_engine",
)


@final
class RequestLog:
    """An array a column, `[requests]`: times are float64, NaN where never reached; counts are int32.

    The views write single values several times as fast as the arrays do.
    """

    def __init__(self, requests: int) -> None:
        self.times = {name: np.full(requests, np.nan) for name in TIMES}
        self.counts = {name: np.zeros(requests, np.int32) for name in COUNTS}
        self.arrival_s, self.assigned_s, self.read_start_s, self.read_end_s = map(self._time, TIMES[:4])
        self.prefill_start_s, self.first_token_s, self.end_s = map(self._time, TIMES[4:])
        self.hit_tokens, self.prefill_side_tokens = map(self._count, COUNTS[:2])
        self.prefill_tier_tokens, self.decode_tier_tokens = map(self._count, COUNTS[2:4])
        self.prefill_node, self.prefill_engine = map(self._count, COUNTS[4:6])
        self.decode_node, self.decode_engine = map(self._count, COUNTS[6:])

    def _time(self, name: str) -> "memoryview[float]":
        return cast("memoryview[float]", self.times[name].data)

    def _count(self, name: str) -> "memoryview[int]":
        return self.counts[name].data
