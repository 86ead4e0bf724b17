"""JAX's process-wide settings; to be made before the first device is asked for."""

import subprocess
import sys
from collections.abc import Callable

import jax

CHECK_S = 120.0

_CHECK = """
import sys
from dualpath_jax.launch.platform import configure_jax
try:
    configure_jax(sys.argv[1], devices=1)
except ValueError as error:
    sys.exit(str(error))
"""


def configure_jax(platform: str, *, devices: int, join: Callable[[], None] = lambda: None) -> None:
    """Choose the platform (empty: what JAX finds) and, on CPU, how many devices this process emulates.

    `join` joins other processes, which has its time between the choice and the first device. Raises ValueError where
    the platform cannot be used here.
    """
    if platform:
        jax.config.update("jax_platforms", platform)
    jax.config.update("jax_num_cpu_devices", devices)
    join()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an assertion is what a platform without a plugin meets
        reason = f": {str(error).partition('. (')[0]}" if str(error) else ""
        raise ValueError(
            f"platform {platform!r} cannot be used{reason}: expected one that JAX has devices of, such as 'cpu'"
        ) from error


def check_platform(platform: str) -> None:
    """Raises ValueError where a platform cannot be used here.

    Asks in a process of its own, which then has gone: devices may belong to one process at a time, and not to this one.
    """
    if platform in ("", "cpu"):
        return
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _CHECK, platform], capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"platform {platform!r} has not said within {CHECK_S:g} s whether it can be used") from error
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"ended with status {asked.returncode}"])[-1]
        raise ValueError(last)
