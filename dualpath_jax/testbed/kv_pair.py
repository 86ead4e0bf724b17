"""KV in both directions between two hosts of a testbed, as long as it is wanted."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dualpath_jax.testbed.helpers import Helper, HelperError
from dualpath_jax.testbed.network import NetworkTestbed

START_S = 90.0


def start_kv(stack: ExitStack, testbed: NetworkTestbed, hosts: Sequence[str], config: str) -> list[Helper]:
    """Ends with `stack`; returns when some KV has arrived on either side. Raises HelperError."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=testbed.namespaces.folder)))
    loads = []
    for name, peer in (hosts, hosts[::-1]):
        address = testbed.host(name).address("cnic")
        flags = [f"--config={config}", f"--bind={address}:0", f"--folder={folder}", f"--name={name}"]
        command, log = testbed.namespaces.command(name), folder / f"kv-{name}.log"
        load = Helper(f"KV of {name}", command, "dualpath_jax.testbed.kv_load", [*flags, f"--peer={peer}"], log)
        loads.append(stack.enter_context(load))
    end = time.monotonic() + START_S
    while not all(arrived_bytes(loads)):
        if time.monotonic() > end:
            raise HelperError(f"no KV has arrived after {START_S:g} s")
        time.sleep(0.1)
    return loads


def arrived_bytes(loads: Sequence[Helper]) -> list[int]:
    """What each has written to the other's memory so far."""
    return [int(load.ask(deadline_s=START_S)) for load in loads]
