"""JAX's process-wide settings; to be made before the first device is asked for."""

import jax


def configure_jax(platform: str, *, devices: int) -> None:
    """Choose the platform (empty: what JAX finds) and, on CPU, how many devices are emulated."""
    if platform:
        jax.config.update("jax_platforms", platform)
    jax.config.update("jax_num_cpu_devices", devices)
