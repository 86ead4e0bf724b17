"""Lanes on a Linux interface: a hierarchy of token buckets (HTB), and filters that read the DSCP of a packet.

The first class has almost all of the rate guaranteed and goes first; the others have their shares, and borrow what is
left. That is the paper's arbitration of virtual lanes, on a kernel that anyone has.
"""

import re
from dataclasses import dataclass, replace

from dualpath_configs import LanesSpec
from dualpath_jax.qos.classes import link_classes
from dualpath_jax.qos.commands import NetworkError, network_command

HANDLE = "da7a:"
"""The name of the queueing discipline on an interface, by which it is known again."""

ROOT = 1
FIRST_CLASS = 0x10
"""Class of service level 0; the others follow."""

BURST_S = 0.00025
MIN_BURST_BYTES = 16 * 1024
MODEL_QUANTUM_BYTES, QUANTUM_BYTES = 30_000, 1514

_RATE_TOLERANCE = 0.01
"""`tc` rounds what it prints."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_CLASS = re.compile(
    rf"class htb {HANDLE}(?P<minor>\w+) (?:root|parent \S+) (?:leaf \S+ )?(?:prio (?P<prio>\d+) )?"
    r"rate (?P<rate>\S+) ceil (?P<ceil>\S+)"
)
_FILTER = re.compile(
    rf"filter (?:parent \S+ )?protocol (?P<protocol>\w+) pref .* \*?flowid {HANDLE}(?P<minor>\w+).*\n"
    r"  match (?P<value>\w+)/(?P<mask>\w+) at 0"
)
_PROTOCOLS = {"ip": ("match ip dsfield", 16), "ipv6": ("match ip6 priority", 20)}
"""How `tc` matches the traffic class of a packet, and its first bit in the first word of the header."""


@dataclass(frozen=True)
class HtbClass:
    """One class of the hierarchy; rates in bits per second."""

    minor: int
    priority: int
    rate: int
    ceil: int

    def __str__(self) -> str:
        return f"class {HANDLE}{self.minor:x} prio {self.priority} rate {self.rate}bit ceil {self.ceil}bit"

    def like(self, other: "HtbClass") -> bool:
        """Whether the two are the same but for rounding."""
        rates = [(self.rate, other.rate), (self.ceil, other.ceil)]
        return self.priority == other.priority and all(abs(a - b) <= _RATE_TOLERANCE * max(a, b) for a, b in rates)


@dataclass(frozen=True)
class DscpFilter:
    """Packets of one mark go to one class."""

    protocol: str
    dscp: int
    minor: int

    def __str__(self) -> str:
        return f"filter {self.protocol} dscp {self.dscp} to class {HANDLE}{self.minor:x}"


@dataclass(frozen=True)
class Shaping:
    """What an interface does, or should do. The root is the first class."""

    default: int
    classes: tuple[HtbClass, ...]
    filters: tuple[DscpFilter, ...]

    def without_lanes(self) -> "Shaping":
        """The same, but nothing is told apart: all packets are in the first class."""
        return replace(self, filters=())


def lane_shaping(lanes: LanesSpec, rate_bytes_per_s: float) -> Shaping:
    """The lanes on a link of this rate."""
    rate = round(rate_bytes_per_s * 8)
    classes, filters = [HtbClass(ROOT, 0, rate, rate)], []
    for priority, link_class in enumerate(link_classes(lanes)):
        minor = FIRST_CLASS + link_class.service_level
        classes.append(HtbClass(minor, priority, round(rate * link_class.share), rate))
        if not link_class.is_model:
            filters += [DscpFilter(name, dscp, minor) for name in _PROTOCOLS for dscp in link_class.dscps]
    return Shaping(classes[1].minor, tuple(classes), tuple(filters))


def shaping_commands(shaping: Shaping, interface: str) -> list[str]:
    """The arguments of `tc` that give an interface without a queueing discipline of its own this one, a line each."""
    lines = [f"qdisc add dev {interface} root handle {HANDLE} htb default 0x{shaping.default:x}"]
    for one in shaping.classes:
        burst = max(MIN_BURST_BYTES, round(one.ceil / 8 * BURST_S))
        parent = HANDLE if one.minor == ROOT else f"{HANDLE}{ROOT}"
        quantum = MODEL_QUANTUM_BYTES if one.minor in (ROOT, shaping.default) else QUANTUM_BYTES
        lines.append(
            f"class add dev {interface} parent {parent} classid {HANDLE}{one.minor:x} htb rate {one.rate}bit "
            f"ceil {one.ceil}bit prio {one.priority} burst {burst} cburst {burst} quantum {quantum}"
        )
    for preference, mark in enumerate(shaping.filters, start=10):  # of its own: each protocol needs one
        match, _ = _PROTOCOLS[mark.protocol]
        lines.append(
            f"filter add dev {interface} parent {HANDLE} protocol {mark.protocol} prio {preference} u32 "
            f"{match} 0x{mark.dscp << 2:02x} 0xfc flowid {HANDLE}{mark.minor:x}"
        )
    return lines


def apply_shaping(shaping: Shaping, interface: str, *, namespace: str = "") -> None:
    """Make the interface do it, in place of lanes that it has. Raises NetworkError."""
    remove_shaping(interface, namespace=namespace)
    _tc(namespace, "-batch", "-", lines="\n".join(shaping_commands(shaping, interface)) + "\n")


def remove_shaping(interface: str, *, namespace: str = "") -> bool:
    """Take the lanes off; returns whether there were any. Raises NetworkError for a discipline that is not ours."""
    if not _has_lanes(interface, namespace):
        return False
    _tc(namespace, "qdisc", "del", "dev", interface, "root")
    return True


def read_shaping(interface: str, *, namespace: str = "") -> Shaping | None:
    """What the interface does; None: no lanes. Raises NetworkError, also for a discipline that is not ours."""
    if not _has_lanes(interface, namespace):
        return None
    said = _tc(namespace, "qdisc", "show", "dev", interface, "root")
    default = re.search(r"default (0x\w+)", said)
    classes = [
        HtbClass(int(found["minor"], 16), int(found["prio"] or 0), _bits(found["rate"]), _bits(found["ceil"]))
        for found in _CLASS.finditer(_tc(namespace, "class", "show", "dev", interface))
    ]
    filters = [
        DscpFilter(found["protocol"], _dscp(found["protocol"], found["value"]), int(found["minor"], 16))
        for found in _FILTER.finditer(_tc(namespace, "filter", "show", "dev", interface, "parent", HANDLE))
        if found["protocol"] in _PROTOCOLS
    ]
    classes.sort(key=lambda one: one.minor)
    return Shaping(int(default[1], 16) if default else 0, tuple(classes), tuple(filters))


def differences(wanted: Shaping, found: Shaping | None) -> list[str]:
    """What is missing (`-`) and what is there beyond (`+`), a line each; none: all is as wanted."""
    if found is None:
        return ["- no lanes on this interface"]
    lines = []
    if wanted.default != found.default:
        lines += [f"- default class {HANDLE}{wanted.default:x}", f"+ default class {HANDLE}{found.default:x}"]
    have = {one.minor: one for one in found.classes}
    for one in wanted.classes:
        other = have.pop(one.minor, None)
        if other is None or not one.like(other):
            lines += [f"- {one}", *([f"+ {other}"] if other else [])]
    lines += [f"+ {one}" for one in have.values()]
    lines += [f"- {mark}" for mark in wanted.filters if mark not in found.filters]
    return lines + [f"+ {mark}" for mark in found.filters if mark not in wanted.filters]


def _has_lanes(interface: str, namespace: str) -> bool:
    roots = re.findall(r"^qdisc (\w+) (\w+:) root", _tc(namespace, "qdisc", "show", "dev", interface), re.MULTILINE)
    for kind, handle in roots:
        if handle not in (HANDLE, "0:"):
            raise NetworkError(
                f"interface {interface} has a queueing discipline of its own ({kind} {handle}): "
                f"expected none, or lanes; `tc qdisc del dev {interface} root` removes it"
            )
    return any(handle == HANDLE for _, handle in roots)


def _tc(namespace: str, *arguments: str, lines: str = "") -> str:
    return network_command("tc", *(("-n", namespace) if namespace else ()), *arguments, lines=lines)


def _bits(text: str) -> int:
    found = re.fullmatch(r"([\d.]+)([KMGT]?)bit", text)
    if found is None:
        raise NetworkError(f"tc says a rate of {text!r}: expected bits per second, such as 400Mbit")
    return round(float(found[1]) * _UNITS[found[2]])


def _dscp(protocol: str, value: str) -> int:
    return int(value, 16) >> (_PROTOCOLS[protocol][1] + 2) & 63
