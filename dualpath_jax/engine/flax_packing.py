"""From chunks to arrays: which bucket a prefill pass takes, and where everything lies in it.

Tokens are packed without gaps, an engine's chunks in order; prefixes lie in the stage without gaps, in whole blocks.
So an engine takes exactly `EngineLimits.prefill_tokens` new and `EngineLimits.prefix_tokens` cached tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from dualpath_configs.cluster import ClusterSpec
from dualpath_jax.engine.base import PrefillChunk, PrefillPass
from dualpath_jax.engine.flax_layers import query_tile_tokens


@final
@dataclass(frozen=True)
class PackedPass:
    """The arrays of a pass, int32: `[E, T]`, tile fields as in `QueryTiles` with a leading engine axis."""

    tokens: np.ndarray
    positions: np.ndarray
    tile_count: np.ndarray  # [E]
    tile_fields: tuple[np.ndarray, ...]  # four, [E, T] each
    last_rows: tuple[int, ...]  # of each chunk, the packed place of its last token

    @property
    def packed_tokens(self) -> int:
        return self.tokens.shape[1]


def smallest_bucket(buckets: Sequence[int], tokens: int) -> int:
    """The smallest bucket that holds `tokens`; the caller has checked that one does."""
    return min(bucket for bucket in buckets if bucket >= tokens)


def plan_pass(spec: ClusterSpec, chunks: Sequence[PrefillChunk]) -> PrefillPass:
    """Lay chunks out. Raises ValueError that names the chunk or the engine whose share is too large."""
    tokens, blocks = [0] * spec.engines_per_node, [0] * spec.engines_per_node
    token_offsets, stage_blocks = [], []
    for chunk in chunks:
        _check_chunk(spec, chunk)
        token_offsets.append(tokens[chunk.engine])
        stage_blocks.append(blocks[chunk.engine])
        tokens[chunk.engine] += len(chunk.tokens)
        blocks[chunk.engine] += chunk.start // spec.block_tokens
    _check_share("new tokens", tokens, spec.engine.prefill_token_buckets, "engine.prefill_token_buckets")
    prefix = [count * spec.block_tokens for count in blocks]
    _check_share("prefix tokens", prefix, spec.engine.prefix_token_buckets, "engine.prefix_token_buckets")
    capacity = smallest_bucket(spec.engine.prefix_token_buckets, max(prefix)) // spec.block_tokens
    return PrefillPass(tuple(chunks), tuple(token_offsets), tuple(stage_blocks), capacity)


def pack_pass(spec: ClusterSpec, pass_: PrefillPass) -> PackedPass:
    """The arrays that a planned pass runs on."""
    engines = spec.engines_per_node
    ends = [offset + len(chunk.tokens) for chunk, offset in zip(pass_.chunks, pass_.token_offsets, strict=True)]
    width = smallest_bucket(spec.engine.prefill_token_buckets, max(ends, default=0))
    tokens, positions = np.zeros((2, engines, width), np.int32)
    count = np.zeros(engines, np.int32)
    fields = np.zeros((4, engines, width), np.int32)
    tile = query_tile_tokens(width)
    for chunk, offset, end, block in zip(pass_.chunks, pass_.token_offsets, ends, pass_.stage_blocks, strict=True):
        e = chunk.engine
        tokens[e, offset:end] = chunk.tokens
        positions[e, offset:end] = np.arange(chunk.start, chunk.start + end - offset)
        starts = np.arange(offset, end, tile)
        rows = slice(count[e], count[e] + starts.size)
        fields[0, e, rows] = starts
        fields[1:, e, rows] = np.array([[offset], [block * spec.block_tokens], [chunk.start]])
        count[e] += starts.size
    return PackedPass(tokens, positions, count, tuple(fields), tuple(end - 1 for end in ends))


def _check_chunk(spec: ClusterSpec, chunk: PrefillChunk) -> None:
    vocabulary = spec.model.vocab_size
    checks = [
        (0 <= chunk.engine < spec.engines_per_node, f"engine {chunk.engine}", f"[0, {spec.engines_per_node})"),
        (len(chunk.tokens) > 0, "no tokens", "at least one: a prompt that is cached whole recomputes its last block"),
        (
            chunk.start >= 0 and chunk.start % spec.block_tokens == 0,
            f"start {chunk.start}",
            f"a multiple of block_tokens ({spec.block_tokens})",
        ),
        (
            bool(np.all((chunk.tokens >= 0) & (chunk.tokens < vocabulary))),
            "tokens outside the vocabulary",
            f"ids in [0, {vocabulary})",
        ),
    ]
    for holds, value, expected in checks:
        if not holds:
            raise ValueError(f"chunk of request {chunk.request!r} has {value}: expected {expected}")


def _check_share(what: str, shares: Sequence[int], buckets: Sequence[int], key: str) -> None:
    for engine, share in enumerate(shares):
        if share > max(buckets):
            raise ValueError(
                f"engine {engine} is given {share} {what} in one pass: expected at most {max(buckets)}, the largest of "
                f"{key}; give it fewer or shorter chunks"
            )
