"""One process of a node that has several: meeting the others, and what each of them does until the end."""

import asyncio
import hashlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, final

import jax
import numpy as np
from jax.experimental import multihost_utils

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import EngineGroup
from dualpath_jax.engine.group.follower import Follower
from dualpath_jax.engine.group.leader import LeaderEngineGroup
from dualpath_jax.engine.group.link import GroupLost, LinkSettings
from dualpath_jax.engine.group.service import LeaderService
from dualpath_jax.launch.flags import USAGE_ERROR, UsageError
from dualpath_jax.launch.lifetime import GRACE_S, LOST_GROUP

ADDRESS_BYTES = 512
MEET_S = 60.0
FAILED = 1

BuildEngine = Callable[[int], EngineGroup]
"""Builds the engines of the process with that number."""


def end_with_group(reason: str) -> NoReturn:
    """Another process of the group is gone: end this one, whatever it is doing, with one line."""
    print(f"{reason}; this process ends with its group", file=sys.stderr, flush=True)
    os._exit(LOST_GROUP)


def fail_at_once(error: Exception) -> NoReturn:
    """End this process with its error, without waiting for the others: they notice."""
    if isinstance(error, UsageError):
        print(f"dualpath-launch: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(USAGE_ERROR if isinstance(error, UsageError) else FAILED)


@final
@dataclass(frozen=True)
class Leader:
    """Process 0, with the service that the others have come to."""

    spec: ClusterSpec
    service: LeaderService

    def close(self) -> None:
        """Let go of the followers."""
        self.service.close()

    def engines(self, build: BuildEngine) -> LeaderEngineGroup:
        """The whole group's engines; its followers build theirs meanwhile."""
        followers = self.service.followers(self.spec.engines_per_node, deadline_s=MEET_S)
        return LeaderEngineGroup(build(0), followers, call_deadline_s=self.spec.scheduling.process_call_s)


def meet(spec: ClusterSpec, host: str) -> Leader | Follower:
    """Connect the processes that JAX has joined; process 0 listens on a free port of its `host`.

    Raises ValueError where they are not as many as the spec says.
    """
    if jax.process_count() != spec.processes_per_node:
        raise ValueError(
            f"{jax.process_count()} processes have met: expected processes_per_node ({spec.processes_per_node})"
        )
    return _meet_as_leader(spec, host) if jax.process_index() == 0 else _meet_as_follower(spec)


def _meet_as_leader(spec: ClusterSpec, host: str) -> Leader:
    service = LeaderService(host, link_settings(spec), processes=spec.processes_per_node)
    _shared_text(service.addresses)
    return Leader(spec, service)


def _meet_as_follower(spec: ClusterSpec) -> Follower:
    return Follower(_shared_text(""), link_settings(spec), process=jax.process_index())


def link_settings(spec: ClusterSpec) -> LinkSettings:
    """What the processes of a node agree on: two whose configs differ would not build the same engines."""
    return LinkSettings(
        config_digest=hashlib.sha256(spec.model_dump_json().encode()).digest(),
        silence_s=spec.scheduling.process_silence_s,
        on_lost=end_with_group,
        call_dscp=spec.network.lanes.model.dscp,
        piece_dscp=spec.network.lanes.load.dscp,
    )


async def follow(follower: Follower, build: BuildEngine) -> None:
    """Make the leader's calls until it closes the group.

    Whoever stops a group stops all of its processes: a follower that is cancelled leaves the end to its leader, for
    as long as a grace.
    """

    def serve() -> None:
        try:
            follower.follow(build(jax.process_index()))
        finally:
            follower.close()

    serving = asyncio.ensure_future(asyncio.to_thread(serve))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        await asyncio.wait([serving], timeout=GRACE_S)
        if not serving.done():
            end_with_group("the leader has not closed the group")
        serving.exception()  # marked as retrieved
        raise
    except GroupLost as lost:
        end_with_group(str(lost))


def _shared_text(text: str) -> str:
    """Process 0's text, in every process."""
    data = np.zeros(ADDRESS_BYTES, np.uint8)
    encoded = text.encode()
    data[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    shared = bytes(np.asarray(multihost_utils.broadcast_one_to_all(data))).rstrip(b"\0").decode()
    logging.info("process %d of %d: the leader is at %s", jax.process_index(), jax.process_count(), shared)
    return shared
