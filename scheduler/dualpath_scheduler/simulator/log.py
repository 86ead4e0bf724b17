"""What a simulation notes of each request, as arrays."""

from typing import Final, final

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
COUNTS: Final = ("prefill_side_tokens", "prefill_node", "prefill_engine", "decode_node", "decode_engine")


@final
class RequestLog:
    """An array a column, `[requests]`: times are float64, NaN where never reached; counts are int32.

    The views write single values several times as fast as the arrays do.
    """

    def __init__(self, requests: int) -> None:
        self.times = {name: np.full(requests, np.nan) for name in TIMES}
        self.counts = {name: np.zeros(requests, np.int32) for name in COUNTS}
        self.arrival_s, self.assigned_s, self.read_start_s, self.read_end_s = self._views(TIMES[:4])
        self.prefill_start_s, self.first_token_s, self.end_s = self._views(TIMES[4:])
        self.prefill_side_tokens = memoryview(self.counts["prefill_side_tokens"])
        self.prefill_node, self.prefill_engine = (memoryview(self.counts[n]) for n in COUNTS[1:3])
        self.decode_node, self.decode_engine = (memoryview(self.counts[n]) for n in COUNTS[3:])

    def _views(self, names: tuple[str, ...]) -> list[memoryview]:
        return [memoryview(self.times[name]) for name in names]
