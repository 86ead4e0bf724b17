"""Which namespaces a testbed has, and their addresses on its three networks."""

from dataclasses import dataclass
from typing import Literal

from dualpath_configs import ClusterSpec

Network = Literal["mgmt", "snic", "cnic"]

NETWORKS: dict[Network, int] = {"mgmt": 0, "snic": 1, "cnic": 2}
"""The networks, which are also the names of the interfaces in a namespace, and the third byte of their addresses.

All lie in 198.18.0.0/15, which is set aside for benchmarks (RFC 2544) and seen in no namespace but the testbed's own.
"""

PREFIX_BITS = 24
SWITCH, STORAGE, CONTROL = "switch", "storage", "control"
_FIRST_NODE = 10


@dataclass(frozen=True)
class Host:
    """One namespace: what it is called in the testbed, its number, and the networks that it is on."""

    name: str
    number: int
    networks: tuple[Network, ...]

    def address(self, network: Network) -> str:
        return f"198.18.{NETWORKS[network]}.{self.number}"

    @property
    def is_node(self) -> bool:
        return self.number >= _FIRST_NODE


def plan_hosts(spec: ClusterSpec) -> tuple[Host, ...]:
    """Storage, the scheduler with the clients (`control`), and the nodes of a cluster, a host for each process."""
    roles = (("prefill", spec.prefill_nodes), ("decode", spec.decode_nodes))
    nodes = [f"{role}-{index}" for role, count in roles for index in range(count)]
    others = range(1, spec.processes_per_node)
    nodes = [name for node in nodes for name in (node, *(f"{node}.{index}" for index in others))]
    return (
        Host(STORAGE, 1, ("mgmt", "snic")),
        Host(CONTROL, 2, ("mgmt",)),
        *(Host(name, number, ("mgmt", "snic", "cnic")) for number, name in enumerate(nodes, start=_FIRST_NODE)),
    )
