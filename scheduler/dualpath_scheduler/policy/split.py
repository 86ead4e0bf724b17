"""A read plan in which both sides finish together (the paper names it as future work)."""

import math
from dataclasses import replace

from dualpath_scheduler.policy.read_times import decode_side_s, prefill_side_s
from dualpath_scheduler.policy.snapshot import ReadPlan, ReadSnapshot


def split(snapshot: ReadSnapshot) -> ReadPlan:
    """Cut the hit blocks where the later of the two sides is done earliest; of two, the prefill side's larger.

    A side whose queue is so long that it would be the later one with a single block reads nothing from storage.
    """
    hit = snapshot.hit_blocks
    if snapshot.prefill_read_tokens_per_s == snapshot.decode_read_tokens_per_s == math.inf:
        # No limit is known of either card: they count as equal, so that their queues still say something.
        snapshot = replace(snapshot, prefill_read_tokens_per_s=1.0, decode_read_tokens_per_s=1.0)
    # With each block that the prefill side takes more, it is done later and the other side earlier: the best cut lies
    # where they meet.
    least, most = 0, hit
    while least < most:
        middle = (least + most + 1) // 2
        if prefill_side_s(snapshot, middle) <= decode_side_s(snapshot, hit - middle):
            least = middle
        else:
            most = middle - 1
    if least < hit and prefill_side_s(snapshot, least + 1) <= decode_side_s(snapshot, hit - least):
        least += 1
    return ReadPlan(least, hit - least)
