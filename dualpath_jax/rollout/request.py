"""What a caller asks for, checked as far as it must be to be sent."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualpath_scheduler.service import scheduler_pb2 as pb

_LARGEST = {"seed": 2**64 - 1, "max_tokens": 2**32 - 1, "token": 2**32 - 1}


@dataclass(frozen=True)
class GenerateCall:
    """The arguments of one generation; `tokens` is the whole prompt."""

    tokens: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int
    stop_tokens: Sequence[int]
    forced_tokens: Sequence[int] | None
    tenant_salt: str

    def message(self) -> pb.GenerateRequest:
        """The call as the protocol writes it; whether a cluster can serve it is the scheduler's to say.

        Raises ValueError, naming the argument and its value, for what the protocol cannot say.
        """
        if self.forced_tokens is not None and len(self.forced_tokens) != self.max_tokens:
            raise ValueError(
                f"forced_tokens has {len(self.forced_tokens)} tokens: expected None or exactly max_tokens "
                f"({self.max_tokens})"
            )
        return pb.GenerateRequest(
            tokens=_token_ids("tokens", self.tokens),
            max_tokens=_whole("max_tokens", self.max_tokens),
            sampling=pb.Sampling(temperature=self.temperature, seed=_whole("seed", self.seed)),
            stop_tokens=_token_ids("stop_tokens", self.stop_tokens),
            forced_tokens=_token_ids("forced_tokens", () if self.forced_tokens is None else self.forced_tokens),
            tenant_salt=self.tenant_salt,
        )


def _whole(name: str, value: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = -1
    if not 0 <= whole <= _LARGEST[name]:
        raise ValueError(f"{name} = {value!r}: expected an integer from 0 to {_LARGEST[name]}")
    return whole


def _token_ids(name: str, values: Sequence[int]) -> list[int]:
    ids = np.asarray(values)
    if ids.size == 0:
        return []
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"{name} is an array of {ids.dtype} with {ids.ndim} axes: expected one axis of integers")
    outside = np.flatnonzero((ids < 0) | (ids > _LARGEST["token"]))
    if outside.size:
        at = int(outside[0])
        raise ValueError(f"{name}[{at}] = {ids[at]}: expected a token id in [0, vocab_size)")
    return ids.tolist()
