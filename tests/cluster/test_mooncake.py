"""A cluster whose blocks are in a Mooncake Store, to which its nodes lend memory."""

import pytest

from tests.cluster.harness import small_spec
from tests.cluster.stores import (
    check_a_later_cluster_hits,
    check_a_second_turn_hits,
    check_bad_reads_are_computed_again,
)
from tests.mooncake import Mooncake


@pytest.mark.long  # each node's segment takes a second to close
async def test_two_turns_hit_what_nodes_lent_memory_for_and_agree(tmp_path, mooncake: Mooncake):
    await check_a_second_turn_hits(small_spec(tmp_path, storage__url=mooncake.url(segment_bytes=32 << 20)))


async def test_damaged_and_failing_reads_are_computed_again(tmp_path, mooncake: Mooncake):
    url = f"faulty+{mooncake.url()}&flip=0.3&error=0.2&lose=0.1&seed=3"
    await check_bad_reads_are_computed_again(small_spec(tmp_path, storage__url=url), turns=4)


async def test_a_cluster_that_starts_later_finds_what_other_nodes_hold(tmp_path, mooncake: Mooncake):
    await check_a_later_cluster_hits(small_spec(tmp_path, storage__url=mooncake.url()))
