"""`dualpath-qos`: what makes a network obey the lanes of a spec; for Linux interfaces, it also makes them, and checks.

Exit status: 0; 1 where --check finds a difference; 2 with one line on standard error where something is wrong.
"""

from absl import flags

from dualpath_configs import LanesSpec
from dualpath_jax.launch.flags import UsageError, cluster_from_flags, define_config_flags, run_command
from dualpath_jax.qos.commands import NetworkError
from dualpath_jax.qos.fabrics import INTERFACE, environment, infiniband, roce
from dualpath_jax.qos.shaping import (
    Shaping,
    apply_shaping,
    differences,
    lane_shaping,
    read_shaping,
    remove_shaping,
    shaping_commands,
)

FLAGS = flags.FLAGS
DIFFERENT = 1
PRINTED = {"infiniband": infiniband, "roce": roce, "environment": environment}
ACTIONS = ("apply", "check", "remove")


def _define_flags() -> None:
    define_config_flags()
    flags.DEFINE_enum(
        "network", "linux", [*PRINTED, "linux"], "Of which network the settings are; environment: of NCCL and UCX."
    )
    flags.DEFINE_string("interface", "", "Linux interface that --apply, --check and --remove are about.")
    flags.DEFINE_float(
        "rate_bytes_per_s", None, "Rate of that interface; absent: network.cnic_bytes_per_s.", lower_bound=1.0
    )
    flags.DEFINE_bool("apply", False, "Give the interface the lanes (root).")
    flags.DEFINE_bool("check", False, "Say how the interface differs from the lanes.")
    flags.DEFINE_bool("remove", False, "Take the lanes off the interface (root).")


def main() -> int:
    """0: done, and no difference; 1: --check found one."""
    actions = [name for name in ACTIONS if FLAGS[name].value]
    if len(actions) > 1:
        raise UsageError(f"--{actions[0]} and --{actions[1]}: expected one of them")
    if actions and not FLAGS.interface:
        raise UsageError(f"--interface is empty: --{actions[0]} needs one; `ip link` lists what there is")
    if actions and FLAGS.network != "linux":
        raise UsageError(f"--{actions[0]} is for --network=linux: the settings of {FLAGS.network} are only printed")
    spec = cluster_from_flags()
    if FLAGS.network != "linux":
        print(PRINTED[FLAGS.network](spec.network.lanes))
        return 0
    shaping = _wanted(spec.network.lanes, FLAGS.rate_bytes_per_s or spec.network.cnic_bytes_per_s)
    try:
        return _perform(actions[0] if actions else "print", shaping)
    except NetworkError as error:
        raise UsageError(str(error)) from error


def _wanted(lanes: LanesSpec, rate_bytes_per_s: float | None) -> Shaping:
    if rate_bytes_per_s is None:
        raise UsageError("network.cnic_bytes_per_s is absent: expected it, or --rate_bytes_per_s")
    return lane_shaping(lanes, rate_bytes_per_s)


def _perform(action: str, shaping: Shaping) -> int:
    interface = FLAGS.interface
    if action == "print":
        print(*(f"tc {line}" for line in shaping_commands(shaping, interface or INTERFACE)), sep="\n")
    elif action == "apply":
        apply_shaping(shaping, interface)
        print(f"{interface} has the lanes")
    elif action == "remove":
        print(f"{interface} has {'the lanes no more' if remove_shaping(interface) else 'no lanes'}")
    else:
        found = differences(shaping, read_shaping(interface))
        print(*(found or [f"{interface} has the lanes"]), sep="\n")
        return DIFFERENT if found else 0
    return 0


def run() -> None:
    """Entry point of `dualpath-qos`."""
    _define_flags()
    run_command(main)


if __name__ == "__main__":
    run()
