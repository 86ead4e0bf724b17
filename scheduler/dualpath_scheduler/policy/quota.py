"""Compute-quota batching in a prefill engine (paper, scheduling): all engines of a group reach the FFN together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

Seconds = Callable[[int, int], float]
"""`seconds(cached, new)`: predicted attention time of `new` tokens on `cached` ones; never falls as `new` grows."""


@final
@dataclass(frozen=True)
class PrefillLimits:
    """What one engine takes in one batch.

    `prefix_unit_tokens` is the granularity in which the stored prefixes of a batch are laid out.
    """

    quota_s: float
    new_tokens: int
    prefix_tokens: int
    block_tokens: int
    prefix_unit_tokens: int = 1

    def __post_init__(self) -> None:
        if self.new_tokens < self.block_tokens:
            raise ValueError(
                f"new_tokens = {self.new_tokens}: expected at least block_tokens ({self.block_tokens}), the least "
                "that a chunk may hold"
            )


def pack_prefill(pending: Iterable[tuple[int, int]], seconds: Seconds, limits: PrefillLimits) -> list[int]:
    """How many new tokens of each pending request make up an engine's next batch; those behind the last get none.

    `pending` is (cached, new) tokens in order of arrival: whole blocks that are stored or computed already, and what
    is left of the prompt (at least one token). Requests are packed first in first out while the predicted attention
    time of the batch stays within `quota_s` and the token limits hold. The first that does not fit whole is cut, by
    binary search over its new tokens, and is the last. A cut chunk ends at a block boundary. The head request gets at
    least one block, or its prompt's rest, whatever the quota says, so that every call makes progress.

    Raises ValueError where the head's prefix alone exceeds `prefix_tokens`: no batch could ever hold it.
    """
    sizes: list[int] = []
    spent_s, spent_new, spent_prefix = 0.0, 0, 0
    for cached, new in pending:
        spent_prefix += -(-cached // limits.prefix_unit_tokens) * limits.prefix_unit_tokens
        if spent_prefix > limits.prefix_tokens:
            if not sizes:
                raise ValueError(
                    f"a request has {cached} cached tokens: expected at most {limits.prefix_tokens}, the prefix that "
                    "one batch of this engine holds; enlarge engine.prefix_token_buckets"
                )
            break
        least = 0 if sizes else min(limits.block_tokens, new)
        most = min(new, limits.new_tokens - spent_new)
        left_s = limits.quota_s - spent_s
        fitting = _largest_chunk(cached, new, most, seconds=seconds, left_s=left_s, block_tokens=limits.block_tokens)
        size = max(least, fitting)
        if size:
            sizes.append(size)
        if size < new:
            break
        spent_s += seconds(cached, size)
        spent_new += size
    return sizes


def _largest_chunk(cached: int, new: int, most: int, *, seconds: Seconds, left_s: float, block_tokens: int) -> int:
    """The most of `new` tokens, at most `most`, that `left_s` allows: all of them, else whole blocks."""
    if most == new and seconds(cached, new) <= left_s:
        return new
    low, high = 0, min(most, new - 1) // block_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(cached, middle * block_tokens) <= left_s:
            low = middle
        else:
            high = middle - 1
    return low * block_tokens
