"""`dualpath-launch`: one role of a cluster on this host."""

import asyncio
import contextlib
import functools
import logging
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import EngineGroup
from dualpath_jax.engine.group.link import GroupLost
from dualpath_jax.launch.addresses import check_bindable, check_reachable, host_of
from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.group_flags import Coordinates, define_group_flags, group_from_flags
from dualpath_jax.launch.lifetime import until_stopped, write_address
from dualpath_scheduler.service import RegistrationRefused, SchedulerUnavailable
from dualpath_storage import StoreError

if TYPE_CHECKING:
    from dualpath_jax.engine.group.follower import Follower
    from dualpath_jax.launch.group import Leader

FLAGS = flags.FLAGS
ROLES = ("scheduler", "prefill", "decode")


def _define_flags() -> None:
    define_config_flags()
    define_group_flags()
    flags.DEFINE_enum("role", None, ROLES, "What this process is.")
    flags.DEFINE_string("bind", "127.0.0.1:0", "host:port to listen on, where others reach it; port 0: a free one.")
    flags.DEFINE_string("scheduler", "", "host:port of the scheduler; for prefill and decode.")
    flags.DEFINE_string("node_id", "", "Name of this node, unique in the cluster; for prefill and decode.")
    flags.DEFINE_string("platform", "", "JAX platform: cpu, cuda, tpu; empty: what JAX finds.")
    flags.DEFINE_string("compilation_cache", "", "Folder where compiled programs are kept between starts; empty: none.")
    flags.DEFINE_string("address_file", "", "File to write the address to, once this process is ready.")
    flags.DEFINE_string(
        "orphans_remove", "", "Folder to remove when standard input has ended; for processes that start this one."
    )
    flags.DEFINE_bool("stop_with_stdin", False, "Stop when standard input ends; for processes that start this one.")


def main() -> int:
    """Serve until SIGTERM, Ctrl-C or the end of standard input (where asked for)."""
    spec, place = _checked_spec()
    serve = _scheduler(spec) if FLAGS.role == "scheduler" else _node(spec, place)
    alone = FLAGS.role == "scheduler" or spec.processes_per_node == 1
    with contextlib.nullcontext() if alone else _failing_at_once(), _explained():
        orphaned = asyncio.run(until_stopped(serve, with_stdin=FLAGS.stop_with_stdin))
    if orphaned and FLAGS.orphans_remove:
        shutil.rmtree(FLAGS.orphans_remove, ignore_errors=True)
    return 0


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What may go wrong in a role that was started correctly, in one line."""
    try:
        yield
    except (StoreError, RegistrationRefused, SchedulerUnavailable, GroupLost, OSError) as error:
        raise UsageError(f"--role={FLAGS.role}: {error}") from error


@contextlib.contextmanager
def _failing_at_once() -> Iterator[None]:
    """A process of a group ends with its error; JAX's own end would wait for the others, and then abort."""
    from dualpath_jax.launch.group import fail_at_once

    try:
        yield
    except Exception as error:
        fail_at_once(error)


def _checked_spec() -> tuple[ClusterSpec, Coordinates | None]:
    """The spec and this process's place, once everything that can be known to be wrong beforehand is not."""
    if FLAGS.role is None:
        raise UsageError(f"--role is missing: expected one of {', '.join(ROLES)}")
    spec = cluster_from_flags()
    if not spec.storage.url:
        raise UsageError(
            "storage.url is empty: expected a store that all nodes reach, --set=storage.url=file:///folder"
        )
    if FLAGS.role != "scheduler":
        for flag in ("scheduler", "node_id"):
            if not FLAGS[flag].value:
                raise UsageError(f"--{flag} is empty: --role={FLAGS.role} needs it")
        check_reachable("scheduler", FLAGS.scheduler)
    spec, place = group_from_flags(spec)
    if place is None or place.index == 0:  # the others do not listen
        check_bindable("bind", FLAGS.bind, advertised=FLAGS.role != "scheduler")
    return spec, place


async def _scheduler(spec: ClusterSpec) -> None:
    from dualpath_scheduler.service import SchedulerServer

    server = SchedulerServer(spec, bind=FLAGS.bind)
    try:
        address = await server.start()
        _ready(address)
        await asyncio.Event().wait()
    finally:
        await server.close()


async def _node(spec: ClusterSpec, place: Coordinates | None) -> None:
    """A node of one process; or one of several, of which the first serves and the others lend it their engines."""
    if spec.processes_per_node == 1:
        await _serve(spec, await asyncio.to_thread(_engine, spec))
        return
    from dualpath_jax.launch.group import Leader, follow

    met = await asyncio.to_thread(_meet, spec, place)
    build = functools.partial(_build, spec)
    if isinstance(met, Leader):
        with contextlib.closing(met):
            await _serve(spec, await asyncio.to_thread(met.engines, build))
    else:
        await follow(met, build)


async def _serve(spec: ClusterSpec, engine: EngineGroup) -> None:
    from dualpath_jax.cluster.decode_node import DecodeNode
    from dualpath_jax.cluster.prefill_node import PrefillNode
    from dualpath_jax.cluster.services import node_services
    from dualpath_jax.transfer import keep_freed_memory

    keep_freed_memory()
    kind = PrefillNode if FLAGS.role == "prefill" else DecodeNode
    async with node_services(spec, engine, bind=FLAGS.bind) as services:
        await kind(services, node_id=FLAGS.node_id, scheduler=FLAGS.scheduler).run(_ready)


def _engine(spec: ClusterSpec) -> EngineGroup:
    if spec.engine.kind == "flax":
        from dualpath_jax.launch.platform import configure_jax

        with _fitting():
            configure_jax(FLAGS.platform, devices=spec.engines_per_node)
    return _build(spec, 0)


def _meet(spec: ClusterSpec, place: Coordinates | None) -> "Leader | Follower":
    """Join the other processes of this node."""
    from dualpath_jax.launch.distributed import join_group
    from dualpath_jax.launch.group import meet
    from dualpath_jax.launch.platform import configure_jax

    join = functools.partial(join_group, place, timeout_s=FLAGS.initialization_timeout)
    with _fitting():
        configure_jax(FLAGS.platform, devices=spec.engines_per_node // spec.processes_per_node, join=join)
        return meet(spec, host_of(FLAGS.bind))


def _build(spec: ClusterSpec, process: int) -> EngineGroup:
    from dualpath_jax.engine.build import build_engine

    with _fitting():
        return build_engine(spec, FLAGS.role, compilation_cache_dir=FLAGS.compilation_cache or None, process=process)


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """A checkpoint, a platform, a number of devices or of processes that does not fit is the user's."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"--role={FLAGS.role}: {error}") from error


def _ready(address: str) -> None:
    name = FLAGS.node_id or FLAGS.role
    logging.info("%s is ready at %s", name, address)
    if FLAGS.address_file:
        write_address(FLAGS.address_file, address)


def run() -> None:
    """Entry point of `dualpath-launch`."""
    _define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
