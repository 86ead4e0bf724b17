"""Which requests a cluster can serve at all; the others are told why not, with the value and the limits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from dualpath_scheduler.service import scheduler_pb2 as pb
from dualpath_scheduler.service.errors import InvalidRequest


@final
@dataclass(frozen=True)
class Limits:
    """Token ids lie in [0, vocab_size); prompt and generation together have at most max_context_tokens."""

    vocab_size: int
    max_context_tokens: int


def check_request(message: pb.GenerateRequest, limits: Limits) -> None:
    """Raises InvalidRequest with the first reason why this request can never be served."""
    for reason in _faults(message, limits):
        raise InvalidRequest(reason)


def _faults(message: pb.GenerateRequest, limits: Limits) -> Iterator[str]:
    prompt, context = len(message.tokens), limits.max_context_tokens
    if not prompt:
        yield f"the prompt is empty: expected 1 to {context - 1} tokens"
    if prompt >= context:
        yield (
            f"the prompt has {prompt} tokens: expected at most {context - 1} "
            f"(max_context_tokens {context}, less one token to generate)"
        )
    if not 1 <= message.max_tokens <= context - prompt:
        yield (
            f"max_tokens = {message.max_tokens}: expected 1 to {context - prompt} "
            f"(max_context_tokens {context}, less the prompt's {prompt})"
        )
    for name in ("tokens", "stop_tokens", "forced_tokens"):
        yield from _outside_vocabulary(name, getattr(message, name), limits.vocab_size)
    forced = len(message.forced_tokens)
    if forced and forced != message.max_tokens:
        yield f"forced_tokens has {forced} tokens: expected none or exactly max_tokens ({message.max_tokens})"
    temperature = message.sampling.temperature
    if not (math.isfinite(temperature) and temperature >= 0):
        yield f"temperature = {temperature:g}: expected a finite number of at least 0 (0 is greedy)"


def _outside_vocabulary(name: str, tokens: object, vocab_size: int) -> Iterator[str]:
    ids = np.asarray(tokens, dtype=np.int64)
    outside = np.flatnonzero(ids >= vocab_size)
    if outside.size:
        at = int(outside[0])
        yield f"{name}[{at}] = {ids[at]}: expected a token id in [0, {vocab_size})"
