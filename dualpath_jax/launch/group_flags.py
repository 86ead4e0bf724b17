"""The flags that give a process its place among those of its node, and what they may say."""

from dataclasses import dataclass
from typing import final

from absl import flags

from dualpath_configs import ClusterSpec
from dualpath_jax.launch.addresses import check_bindable, check_reachable
from dualpath_jax.launch.flags import UsageError

FLAGS = flags.FLAGS
PLACE = ("coordinator_address", "num_processes", "process_id")


@final
@dataclass(frozen=True)
class Coordinates:
    """One process's place in its group: `address` is `host:port`, where process 0 listens for the others."""

    address: str
    count: int
    index: int


def define_group_flags() -> None:
    """As `jax.distributed.initialize` calls its arguments."""
    flags.DEFINE_string(
        "coordinator_address", None, "host:port of process 0 of this node, where its processes meet; all three or none."
    )
    flags.DEFINE_integer("num_processes", None, "Processes of this node; in place of processes_per_node.")
    flags.DEFINE_integer("process_id", None, "Which of them this one is; 0 leads.")
    flags.DEFINE_integer(
        "initialization_timeout", 300, "Seconds to wait for the other processes of this node.", lower_bound=1
    )


def group_from_flags(spec: ClusterSpec) -> tuple[ClusterSpec, Coordinates | None]:
    """The spec with the number of processes that the flags give, and this one's place; None: one process, or to detect.

    Raises UsageError.
    """
    given = [name for name in PLACE if FLAGS[name].value is not None]
    if not given:
        return spec, None
    if FLAGS.role == "scheduler":
        raise UsageError(f"--{given[0]} with --role=scheduler: expected no such flag: it is one process")
    missing = [name for name in PLACE if name not in given]
    if missing:
        raise UsageError(f"--{missing[0]} is missing: expected --{', --'.join(PLACE)}, or none of them")
    place = Coordinates(FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id)
    if place.count < 1 or spec.engines_per_node % place.count:
        raise UsageError(
            f"--num_processes={place.count}: expected a divisor of engines_per_node ({spec.engines_per_node})"
        )
    if not 0 <= place.index < place.count:
        raise UsageError(
            f"--process_id={place.index}: expected 0 to {place.count - 1}, since --num_processes={place.count}"
        )
    check_reachable("coordinator_address", place.address)
    if place.index == 0:
        check_bindable("coordinator_address", place.address, advertised=True)
    return spec.model_copy(update={"processes_per_node": place.count}), place
