"""A Mooncake master, asked without a client of Mooncake's: whether it is one and answers, and what it lists."""

import http.client
import socket
import struct

from dualpath_storage.mooncake_url import Address, MooncakeLocation
from dualpath_storage.store import StoreError

_ANSWER_DEADLINE_S = 3.0
_MAGIC = 0x15
_EMPTY_CALL = struct.pack("<4B4I", _MAGIC, 0, 0, 0, 0, 0, 0, 0)
"""A call of no function, in the header of coro_rpc, the protocol of a master's rpc port: magic number, version,
serialization, type; then call number, function, and two lengths. It is answered with an error, in the same header."""


def reach_master(location: MooncakeLocation) -> str:
    """See to it that the master answers at both its ports; returns this host's address, as its network sees it.

    A client that is set up with a master that does not answer tries for a minute and a half, in which it holds the
    interpreter lock. Raises StoreError, within a few seconds.
    """
    host = _call_master(location)
    try:
        ask_master(location, "/health", timeout_s=_ANSWER_DEADLINE_S)
    except OSError as error:
        raise StoreError(
            f"store URL {location.url!r}: the Mooncake master does not answer ({error}): check that it runs, and that "
            "admin=host:port is its --metrics_port"
        ) from None
    return host


def ask_master(location: MooncakeLocation, path: str, *, timeout_s: float) -> str:
    """What the master says over HTTP. Raises OSError, its text one line with the address."""
    host, port = location.admin
    where = f"{address_text(location.admin)}{path}"
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"{where}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"{where}: HTTP status {response.status}")
    return text


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _call_master(location: MooncakeLocation) -> str:
    master = address_text(location.master)
    try:
        with socket.create_connection(location.master, timeout=_ANSWER_DEADLINE_S) as connection:
            connection.sendall(_EMPTY_CALL)
            answer = connection.recv(1)
            host = str(connection.getsockname()[0])
    except TimeoutError:
        reason = f"no answer within {_ANSWER_DEADLINE_S:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if answer == bytes([_MAGIC]):
            return host
        reason = "what listens there speaks another protocol"
    raise StoreError(
        f"store URL {location.url!r}: no Mooncake master at {master} ({reason}): check that mooncake_master runs and "
        "that this is its --rpc_port"
    )
