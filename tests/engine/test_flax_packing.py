"""How chunks are laid out, and what is refused."""

import numpy as np
import pytest

from dualpath_configs import EngineSpec
from dualpath_jax.engine.base import PrefillChunk, Stage
from dualpath_jax.engine.flax_packing import pack_pass, plan_pass
from dualpath_jax.models.kv import kv_layout
from tests.engine.flax_testbed import cluster_spec

SPEC = cluster_spec(
    engine=EngineSpec(
        prefill_token_buckets=(64, 128), prefix_token_buckets=(128, 256), shard_tokens=32, decode_pages=32
    )
)


def chunk(tokens: int, start: int = 0, engine: int = 0) -> PrefillChunk:
    return PrefillChunk("r", engine, 1 + np.arange(tokens), start)


def test_chunks_lie_without_gaps() -> None:
    pass_ = plan_pass(SPEC, [chunk(33, 24), chunk(5, 0, 1), chunk(2, 40), chunk(1, 8, 1)])
    assert pass_.token_offsets == (0, 0, 33, 5)
    assert pass_.stage_blocks == (0, 0, 3, 0)
    packed = pack_pass(SPEC, pass_)
    assert packed.tokens[0].tolist() == [*range(1, 34), 1, 2, *[0] * 29]
    assert packed.positions[0, :35].tolist() == [*range(24, 57), 40, 41]
    assert packed.last_rows == (32, 4, 34, 5)
    # Two tiles of 32 tokens for 33 tokens, one for each other chunk: start, chunk start, prefix start, prefix tokens.
    assert packed.tile_count.tolist() == [3, 2]
    assert np.stack(packed.tile_fields)[:, 0, :3].T.tolist() == [[0, 0, 0, 24], [32, 0, 0, 24], [33, 33, 24, 40]]


@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (64, 64), (65, 128), (95, 128)])
def test_the_smallest_token_bucket_that_fits(tokens: int, width: int) -> None:
    assert pack_pass(SPEC, plan_pass(SPEC, [chunk(3), chunk(tokens, 0, 1)])).packed_tokens == width


@pytest.mark.parametrize(("prefix", "blocks"), [(0, 16), (128, 16), (136, 32), (256, 32)])
def test_the_smallest_stage_bucket_that_fits(prefix: int, blocks: int) -> None:
    pass_ = plan_pass(SPEC, [chunk(3), chunk(4, prefix, 1)])
    assert pass_.stage_capacity == blocks
    stage = Stage(kv_layout(SPEC.model, SPEC.block_tokens), engines=2, layers=3, blocks=32)
    last = stage.offset(pass_, 3, engine=1, layer=2, block=blocks - 1)
    assert last + stage.offset(pass_, 3, engine=0, layer=0, block=1) <= stage.buffer.size


def test_exactly_the_limits_fit() -> None:
    chunks = [chunk(90, 200), chunk(37, 56), chunk(1)]
    assert plan_pass(SPEC, chunks).token_offsets == (0, 90, 127)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([chunk(95), chunk(34)], r"engine 0 is given 129 new tokens in one pass: expected at most 128"),
        ([chunk(1, 200, 1), chunk(1, 64, 1)], r"engine 1 is given 264 prefix tokens in one pass: expected at most 256"),
        ([chunk(1, 4)], r"has start 4: expected a multiple of block_tokens \(8\)"),
        ([chunk(0)], r"has no tokens: expected at least one"),
        ([chunk(96)], r"has tokens outside the vocabulary: expected ids in \[0, 96\)"),
        ([chunk(1, engine=2)], r"has engine 2: expected \[0, 2\)"),
    ],
)
def test_what_is_refused(chunks: list[PrefillChunk], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        plan_pass(SPEC, chunks)
