"""What passed the cards of a testbed, as the kernel counted it."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dualpath_configs import LanesSpec
from dualpath_jax.qos.classes import link_classes
from dualpath_jax.qos.commands import network_command
from dualpath_jax.qos.shaping import FIRST_CLASS, HANDLE
from dualpath_jax.testbed.namespaces import Namespaces
from dualpath_jax.testbed.plan import Host

_CLASS = re.compile(
    rf"class htb {HANDLE}(?P<minor>\w+) .*\n Sent (?P<bytes>\d+) bytes \d+ pkt \(dropped (?P<dropped>\d+)"
)

Counters = Mapping[tuple[str, str], int]
"""By host and what is counted, as `read_counters` names it."""


def read_counters(lanes: LanesSpec, hosts: Iterable[Host], namespaces: Namespaces) -> Counters:
    """Bytes of each node: `SNIC in`, `SNIC out`, and sent on its compute card in each class of lanes.

    Raises NetworkError.
    """
    counted: dict[tuple[str, str], int] = {}
    for host in hosts:
        if not host.is_node:
            continue
        namespace = namespaces.full_name(host.name)
        (link,) = json.loads(network_command("ip", "-n", namespace, "-j", "-s", "link", "show", "dev", "snic"))
        counted[host.name, "SNIC in"] = link["stats64"]["rx"]["bytes"]
        counted[host.name, "SNIC out"] = link["stats64"]["tx"]["bytes"]
        said = network_command("tc", "-n", namespace, "-s", "class", "show", "dev", "cnic")
        sent = {int(found["minor"], 16): int(found["bytes"]) for found in _CLASS.finditer(said)}
        for one in link_classes(lanes):
            counted[host.name, f"CNIC out, {one.title}"] = sent.get(FIRST_CLASS + one.service_level, 0)
    return counted


def passed(before: Counters, after: Counters) -> Counters:
    """What was counted between two readings."""
    return {key: value - before.get(key, 0) for key, value in after.items()}


@dataclass(frozen=True)
class CardTable:
    """Rows of what was counted, columns of hosts, for one run."""

    mode: str
    counted: Counters
    seconds: float
    snic_bytes_per_s: float | None

    def by_host(self) -> dict[str, dict[str, int]]:
        """Bytes, by host and by what was counted."""
        hosts = dict.fromkeys(host for host, _ in self.counted)
        return {host: {name: count for (one, name), count in self.counted.items() if one == host} for host in hosts}

    def lines(self) -> Sequence[str]:
        """MB by host, and how busy the storage cards were over the run."""
        hosts = list(dict.fromkeys(host for host, _ in self.counted))
        rows = {name: [f"{self.counted[host, name] / 1e6:,.1f}" for host in hosts] for _, name in self.counted}
        table = {f"{name} (MB)": cells for name, cells in rows.items()}
        if self.snic_bytes_per_s is not None and self.seconds > 0:
            full = self.snic_bytes_per_s * self.seconds
            table["SNIC in, of its rate (%)"] = [f"{100 * self.counted[host, 'SNIC in'] / full:.1f}" for host in hosts]
        title = f"{self.mode}: counted by the kernel"
        label = max(map(len, [title, *table]))
        width = max([*map(len, hosts), *(len(cell) for cells in table.values() for cell in cells)])
        return [
            "  ".join([name.ljust(label), *(cell.rjust(width) for cell in cells)])
            for name, cells in {title: hosts, **table}.items()
        ]
