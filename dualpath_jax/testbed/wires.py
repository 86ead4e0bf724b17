"""The networks of a testbed: bridges in a namespace that is the switch, and a pair of interfaces for each card.

Both ends of a card's pair are shaped, the host's for what it sends and the switch's for what it receives: storage cards
by a token bucket (TBF), compute cards by the lanes (`dualpath_jax.qos.shaping`). Management and the storage host have
no limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dualpath_configs import ClusterSpec
from dualpath_jax.qos.commands import network_command
from dualpath_jax.qos.shaping import apply_shaping, lane_shaping
from dualpath_jax.testbed.namespaces import Namespaces
from dualpath_jax.testbed.plan import NETWORKS, PREFIX_BITS, SWITCH, Host, Network

QUEUE_S = 0.1
"""Most time that a packet waits for a storage card before it is dropped."""

PACKET_S = 0.0002
MIN_GSO_BYTES, MAX_GSO_BYTES = 3_000, 65_536
"""The kernel hands a card many packets as one, and no other lane comes between: such a one takes so long at most."""

Port = tuple[str, str]
"""A namespace and an interface in it."""


@dataclass(frozen=True)
class Card:
    """One card of one host: where it sends, and where the switch sends to it."""

    host: str
    network: Network
    own: Port
    switch: Port


def cards(hosts: Sequence[Host], namespaces: Namespaces) -> Iterator[Card]:
    """Every card of a testbed."""
    switch = namespaces.full_name(SWITCH)
    for host in hosts:
        for network in host.networks:
            port = f"{network[0]}{host.number}"
            yield Card(host.name, network, (namespaces.full_name(host.name), network), (switch, port))


def connect(spec: ClusterSpec, hosts: Sequence[Host], namespaces: Namespaces) -> None:
    """Lay the wires and give them addresses. Raises NetworkError."""
    together = round((_cnic_bytes_per_s(spec) or 0) * PACKET_S)
    gso = {"cnic": min(max(together, MIN_GSO_BYTES), MAX_GSO_BYTES)}
    switch = namespaces.full_name(SWITCH)
    bridges = [f"link add {network} type bridge forward_delay 0\nlink set {network} up" for network in NETWORKS]
    _ip(switch, bridges)
    by_name = {host.name: host for host in hosts}
    for card in cards(hosts, namespaces):
        namespace, name = card.own
        port = card.switch[1]
        address = by_name[card.host].address(card.network)
        most = gso.get(card.network, MAX_GSO_BYTES)
        pair = f"link add {port} gso_max_size {most} type veth peer name {name} gso_max_size {most}"
        _ip(switch, [f"{pair} netns {namespace}", f"link set {port} master {card.network} up"])
        _ip(namespace, [f"addr add {address}/{PREFIX_BITS} dev {name}", f"link set {name} up"])
    _route_control(hosts, namespaces)


def shape(spec: ClusterSpec, hosts: Sequence[Host], namespaces: Namespaces, *, lanes: bool) -> None:
    """Give the nodes' cards the rates of the spec; without `lanes` all traffic of a compute card is one class."""
    network = spec.network
    nodes = {host.name for host in hosts if host.is_node}
    for card in cards(hosts, namespaces):
        if card.host not in nodes:
            continue
        for namespace, name in (card.own, card.switch):
            if card.network == "snic" and network.snic_bytes_per_s is not None:
                _limit(namespace, name, network.snic_bytes_per_s, network.burst_bytes)
            rate = _cnic_bytes_per_s(spec)
            if card.network == "cnic" and rate is not None:
                shaping = lane_shaping(network.lanes, rate)
                apply_shaping(shaping if lanes else shaping.without_lanes(), name, namespace=namespace)


def set_link(namespaces: Namespaces, host: str, network: Network, *, up: bool) -> None:
    """Pull the cable of a host's card, or put it back."""
    _ip(namespaces.full_name(host), [f"link set {network} {'up' if up else 'down'}"])


def _cnic_bytes_per_s(spec: ClusterSpec) -> float | None:
    """Of a host: the cards of its engines are one interface."""
    rate = spec.network.cnic_bytes_per_s
    return None if rate is None else rate * spec.engines_per_node / spec.processes_per_node


def _limit(namespace: str, name: str, bytes_per_s: float, burst_bytes: int) -> None:
    queue = max(round(bytes_per_s * QUEUE_S), burst_bytes) + burst_bytes
    rate = f"rate {round(bytes_per_s * 8)}bit burst {burst_bytes} limit {queue}"
    network_command("tc", "-n", namespace, *f"qdisc replace dev {name} root tbf {rate}".split())


def _route_control(hosts: Sequence[Host], namespaces: Namespaces) -> None:
    """Hosts that are on management alone reach the others' further addresses over it, not over their cards."""
    for host in hosts:
        if host.networks != ("mgmt",):
            continue
        others = [(other, network) for other in hosts for network in other.networks if network != "mgmt"]
        routes = [f"route add {other.address(network)} via {other.address('mgmt')}" for other, network in others]
        _ip(namespaces.full_name(host.name), routes)


def _ip(namespace: str, lines: Sequence[str]) -> None:
    network_command("ip", "-n", namespace, "-batch", "-", lines="\n".join(lines) + "\n")
