"""Addresses in flags: `host:port`, checked before anything is started."""

import socket

from dualpath_jax.launch.flags import UsageError


def check_reachable(flag: str, text: str) -> None:
    """Raises UsageError unless `text` is a host and the port of somebody who may listen there."""
    _, port = _parts(flag, text)
    if port == 0:
        raise UsageError(f"--{flag}={text}: expected the port that it listens on, which is never 0")


def check_bindable(flag: str, text: str, *, advertised: bool) -> None:
    """Raises UsageError unless this process could listen at `text` now; port 0 takes a free one.

    Whoever listens where it can be asked from outside tells others its address (`advertised`), and a host that
    stands for all of this machine's addresses tells them nothing.
    """
    host, port = _parts(flag, text)
    if advertised and host in ("", "0.0.0.0", "::"):
        raise UsageError(f"--{flag}={text}: other nodes connect to this address: expected one of this host's own")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise UsageError(f"--{flag}={text}: cannot listen there: {error.strerror or error}") from error


def host_of(address: str) -> str:
    """The host of an address that was checked."""
    return _parts("bind", address)[0]


def _parts(flag: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--{flag}={text}: expected host:port, such as 127.0.0.1:8476")
    return host.removeprefix("[").removesuffix("]"), int(port)
