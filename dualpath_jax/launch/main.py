"""`dualpath-launch`: one role of a cluster on this host."""

import asyncio
import logging
import shutil

from absl import flags

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import EngineGroup
from dualpath_jax.launch.addresses import check_bindable, check_reachable
from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.launch.lifetime import until_stopped, write_address
from dualpath_scheduler.service import RegistrationRefused, SchedulerUnavailable
from dualpath_storage import StoreError

FLAGS = flags.FLAGS
ROLES = ("scheduler", "prefill", "decode")


def _define_flags() -> None:
    define_config_flags()
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
    spec = _checked_spec()
    serve = _scheduler(spec) if FLAGS.role == "scheduler" else _node(spec)
    try:
        orphaned = asyncio.run(until_stopped(serve, with_stdin=FLAGS.stop_with_stdin))
    except (StoreError, RegistrationRefused, SchedulerUnavailable, OSError) as error:
        raise UsageError(f"--role={FLAGS.role}: {error}") from error
    if orphaned and FLAGS.orphans_remove:
        shutil.rmtree(FLAGS.orphans_remove, ignore_errors=True)
    return 0


def _checked_spec() -> ClusterSpec:
    """The spec, once everything that can be known to be wrong without starting anything is not."""
    if FLAGS.role is None:
        raise UsageError(f"--role is missing: expected one of {', '.join(ROLES)}")
    spec = cluster_from_flags()
    if not spec.storage.url:
        raise UsageError(
            "storage.url is empty: expected a store that all nodes reach, --set=storage.url=file:///folder"
        )
    if spec.storage.in_process_memory:
        raise UsageError(
            f"storage.url = {spec.storage.url!r}: processes share no memory: expected a store that all nodes reach, "
            "--set=storage.url=file:///folder"
        )
    if FLAGS.role != "scheduler":
        for flag in ("scheduler", "node_id"):
            if not FLAGS[flag].value:
                raise UsageError(f"--{flag} is empty: --role={FLAGS.role} needs it")
        check_reachable("scheduler", FLAGS.scheduler)
    check_bindable("bind", FLAGS.bind, advertised=FLAGS.role != "scheduler")
    return spec


async def _scheduler(spec: ClusterSpec) -> None:
    from dualpath_scheduler.service import SchedulerServer

    server = SchedulerServer(spec, bind=FLAGS.bind)
    try:
        address = await server.start()
        _ready(address)
        await asyncio.Event().wait()
    finally:
        await server.close()


async def _node(spec: ClusterSpec) -> None:
    from dualpath_jax.cluster.decode_node import DecodeNode
    from dualpath_jax.cluster.prefill_node import PrefillNode
    from dualpath_jax.cluster.services import node_services
    from dualpath_jax.transfer import keep_freed_memory

    keep_freed_memory()
    kind = PrefillNode if FLAGS.role == "prefill" else DecodeNode
    async with node_services(spec, await asyncio.to_thread(_engine, spec), bind=FLAGS.bind) as services:
        await kind(services, node_id=FLAGS.node_id, scheduler=FLAGS.scheduler).run(_ready)


def _engine(spec: ClusterSpec) -> EngineGroup:
    from dualpath_jax.engine.build import build_engine
    from dualpath_jax.launch.platform import configure_jax

    try:
        if spec.engine.kind == "flax":
            configure_jax(FLAGS.platform, devices=spec.engines_per_node)
        return build_engine(spec, FLAGS.role, compilation_cache_dir=FLAGS.compilation_cache or None)
    except ValueError as error:  # a checkpoint, a platform or a number of devices that does not fit
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
