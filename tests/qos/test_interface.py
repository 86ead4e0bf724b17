"""Lanes on a real interface, in a namespace of its own; needs root."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dualpath_configs import LanesSpec
from dualpath_jax.qos.commands import NetworkError, network_command
from dualpath_jax.qos.shaping import apply_shaping, differences, lane_shaping, read_shaping, remove_shaping

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2: makes network namespaces"
)

NAMES = (f"dpq{os.getpid()}-a", f"dpq{os.getpid()}-b")
WANTED = lane_shaping(LanesSpec(), 50e6)


@pytest.fixture
def card() -> Iterator[str]:
    """An interface `cnic` in a namespace, connected to another; the namespace's name."""
    here, there = NAMES
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            network_command("ip", "netns", "add", name)
            stack.callback(network_command, "ip", "netns", "delete", name)
        network_command("ip", "-n", here, "link", "add", "cnic", "type", "veth", "peer", "name", "cnic", "netns", there)
        for name, last in ((here, 1), (there, 2)):
            network_command("ip", "-n", name, "addr", "add", f"198.18.2.{last}/24", "dev", "cnic")
            network_command("ip", "-n", name, "addr", "add", f"fd00::{last}/64", "dev", "cnic", "nodad")
            network_command("ip", "-n", name, "link", "set", "cnic", "address", f"02:00:00:00:00:0{last}", "up")
        # What waits for a neighbour's answer would be counted later.
        neighbour = "fd00::2 lladdr 02:00:00:00:00:02 dev cnic nud permanent"
        network_command("ip", "-n", here, "neigh", "add", *neighbour.split())
        yield here


def tc(namespace: str, line: str) -> str:
    return network_command("tc", "-n", namespace, *line.split())


def qos(namespace: str, *flags: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command, inside the namespace."""
    command = ["ip", "netns", "exec", namespace, *(["env", f"PATH={path}"] if path is not None else [])]
    command += [sys.executable, "-m", "dualpath_jax.qos.main", "--rate_bytes_per_s=50e6", "--interface=cnic", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_applied_lanes_are_found_again_and_removed(card):
    assert read_shaping("cnic", namespace=card) is None
    apply_shaping(WANTED, "cnic", namespace=card)
    assert differences(WANTED, read_shaping("cnic", namespace=card)) == []
    assert remove_shaping("cnic", namespace=card)
    assert not remove_shaping("cnic", namespace=card)
    assert read_shaping("cnic", namespace=card) is None


@pytest.mark.parametrize("rate_bytes_per_s", [1e5, 1.2345e6, 49_999_123.0, 1.25e9, 25e9])
def test_rounding_of_rates_is_no_difference(card, rate_bytes_per_s):
    wanted = lane_shaping(LanesSpec(), rate_bytes_per_s)
    apply_shaping(wanted, "cnic", namespace=card)
    assert differences(wanted, read_shaping("cnic", namespace=card)) == []


def test_lanes_are_replaced_by_others(card):
    apply_shaping(lane_shaping(LanesSpec(), 10e6), "cnic", namespace=card)
    lanes = LanesSpec.model_validate({"load": {"dscp": 10}, "store": {"service_level": 3, "share": 0.003}})
    wanted = lane_shaping(lanes, 50e6)
    apply_shaping(wanted, "cnic", namespace=card)
    assert differences(wanted, read_shaping("cnic", namespace=card)) == []
    assert len(wanted.classes) == 4


def test_differences_name_what_is_missing_and_what_is_too_much(card):
    apply_shaping(replace(WANTED, filters=WANTED.filters[:1]), "cnic", namespace=card)
    tc(card, "class change dev cnic classid da7a:12 htb rate 8mbit ceil 100mbit")
    tc(card, "class add dev cnic parent da7a:1 classid da7a:99 htb rate 1mbit")
    assert differences(WANTED, read_shaping("cnic", namespace=card)) == [
        "- class da7a:12 prio 1 rate 4000000bit ceil 400000000bit",
        "+ class da7a:12 prio 0 rate 8000000bit ceil 100000000bit",
        "+ class da7a:99 prio 0 rate 1000000bit ceil 1000000bit",
        "- filter ipv6 dscp 8 to class da7a:12",
    ]


def test_a_discipline_of_somebody_else_is_left_alone(card):
    tc(card, "qdisc add dev cnic root tbf rate 10mbit burst 16k latency 50ms")
    for act in (lambda: apply_shaping(WANTED, "cnic", namespace=card), lambda: remove_shaping("cnic", namespace=card)):
        with pytest.raises(NetworkError, match=r"cnic has a queueing discipline of its own \(tbf "):
            act()
    assert "tbf" in tc(card, "qdisc show dev cnic")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_a_packets_mark_decides_its_class(card, family):
    apply_shaping(WANTED, "cnic", namespace=card)
    code = (
        "import socket, sys\n"
        f"s = socket.socket({int(family)}, socket.SOCK_DGRAM)\n"
        f"option = (socket.IPPROTO_IP, socket.IP_TOS) if {family == socket.AF_INET} else (41, 67)\n"
        "s.setsockopt(*option, int(sys.argv[1]) << 2)\n"
        f"s.sendto(bytes(1000), ({'198.18.2.2' if family == socket.AF_INET else 'fd00::2'!r}, 9))\n"
    )
    sent = []
    for dscp in (0, 8, 46):
        before = _bytes_of_class(card, "12")
        network_command("ip", "netns", "exec", card, sys.executable, "-c", code, str(dscp))
        sent.append(_bytes_of_class(card, "12") - before)
    assert sent[0] == sent[2] == 0
    assert sent[1] > 1000


def _bytes_of_class(namespace: str, minor: str) -> int:
    said = tc(namespace, "-s class show dev cnic")
    part = said[said.index(f"class htb da7a:{minor} ") :]
    return int(part[part.index("Sent ") :].split()[1])


def test_the_command_applies_checks_and_removes(card):
    assert (qos(card, "--check").returncode, qos(card, "--check").stdout) == (1, "- no lanes on this interface\n")
    done = qos(card, "--apply")
    assert (done.returncode, done.stdout) == (0, "cnic has the lanes\n"), done.stderr
    assert (qos(card, "--check").returncode, qos(card, "--check").stdout) == (0, "cnic has the lanes\n")
    other = qos(card, "--check", "--set=network.lanes.load.dscp=10")
    assert other.returncode == 1
    assert "- filter ip dscp 10 to class da7a:12" in other.stdout.splitlines()
    assert qos(card, "--remove").stdout == "cnic has the lanes no more\n"
    assert qos(card, "--remove").stdout == "cnic has no lanes\n"


def test_without_the_program_it_says_what_to_install(card):
    done = qos(card, "--apply", path="/nonexistent")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the program tc is missing: install it (Debian: iproute2" in done.stderr


def test_without_root_it_says_so(card):
    command = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", sys.executable, "-m"]
    command += ["dualpath_jax.qos.main", "--rate_bytes_per_s=50e6", "--interface=cnic", "--apply"]
    done = subprocess.run(
        ["ip", "netns", "exec", card, *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert "Operation not permitted: run it as root" in done.stderr
