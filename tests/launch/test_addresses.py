"""Addresses are checked before anything is started."""

import socket

import pytest

from dualpath_jax.launch.addresses import check_bindable, check_reachable
from dualpath_jax.launch.flags import UsageError


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:abc", "host:-1", "host:65536", "host:²"])
def test_no_host_and_port(text):
    for check in (check_reachable, lambda flag, text: check_bindable(flag, text, advertised=False)):
        with pytest.raises(UsageError, match=f"--bind={text}: expected host:port, such as 127.0.0.1:8476"):
            check("bind", text)


def test_a_scheduler_listens_at_a_port_of_its_own():
    check_reachable("scheduler", "some.host.example:8476")
    with pytest.raises(UsageError, match=r"--scheduler=localhost:0: expected the port that it listens on"):
        check_reachable("scheduler", "localhost:0")


def test_free_ports_can_be_had():
    for text in ("127.0.0.1:0", "localhost:0"):
        check_bindable("bind", text, advertised=True)
    check_bindable("bind", "0.0.0.0:0", advertised=False)


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--bind={text}: cannot listen there: Address already in use"):
            check_bindable("bind", text, advertised=True)


def test_an_address_of_another_host_is_named():
    with pytest.raises(UsageError, match=r"--bind=192\.0\.2\.1:0: cannot listen there: Cannot assign requested"):
        check_bindable("bind", "192.0.2.1:0", advertised=True)


@pytest.mark.parametrize("text", ["0.0.0.0:0", "[::]:0", ":0"])
def test_nodes_listen_where_others_can_find_them(text):
    with pytest.raises(UsageError, match="other nodes connect to this address: expected one of this host's own"):
        check_bindable("bind", text, advertised=True)
