"""JAX's process-wide settings; to be made before the first device is asked for."""

from collections.abc import Callable

import jax


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
