"""What `dualpath-qos` prints: the paper's options for the default lanes, and the same lanes for every other network."""

import json
import subprocess
import sys

import pytest

from dualpath_configs import LanesSpec
from dualpath_jax.qos.classes import link_classes
from dualpath_jax.qos.fabrics import environment, infiniband, roce
from dualpath_jax.qos.shaping import lane_shaping, shaping_commands

THREE = LanesSpec.model_validate(
    {
        "model": {"dscp": 46, "service_level": 1, "share": 0.9},
        "load": {"dscp": 10, "service_level": 2, "share": 0.08},
        "store": {"dscp": 8, "service_level": 4, "share": 0.02},
    }
)

INFINIBAND = """\
# model: service level and virtual lane 0, DSCP 0, at least 99 %
# load and store: service level and virtual lane 2, DSCP 8, at least 1 %
qos TRUE
qos_max_vls 4
qos_high_limit 240
qos_vlarb_high 0:192,1:192,2:0,3:192
qos_vlarb_low 0:192,1:192,2:64,3:192
qos_sl2vl 0,1,2,3,0,0,0,0,0,0,0,0,0,0,0,0"""

INFINIBAND_THREE = """\
# model: service level and virtual lane 1, DSCP 46, at least 90 %
# load: service level and virtual lane 2, DSCP 10, at least 8 %
# store: service level and virtual lane 4, DSCP 8, at least 2 %
qos TRUE
qos_max_vls 8
qos_high_limit 240
qos_vlarb_high 0:192,1:192,2:0,3:192,4:0,5:192,6:192,7:192
qos_vlarb_low 0:192,1:192,2:64,3:192,4:16,5:192,6:192,7:192
qos_sl2vl 0,1,2,3,4,5,6,7,0,0,0,0,0,0,0,0"""

ROCE = """\
# model: traffic class and priority 0, DSCP 0, at least 99 %
# load and store: traffic class and priority 2, DSCP 8, at least 1 %
# On each host, for the interface of each card in turn:
mlnx_qos -i IFACE --trust=dscp
mlnx_qos -i IFACE --dscp2prio=set,0,0
mlnx_qos -i IFACE --dscp2prio=set,8,2
mlnx_qos -i IFACE --prio_tc=0,1,2,3,0,0,0,0
mlnx_qos -i IFACE --tsa=ets,ets,ets,ets,ets,ets,ets,ets --tcbw=33,33,1,33,0,0,0,0
mlnx_qos -i IFACE --pfc=1,1,1,1,0,0,0,0
# On a SONiC switch, merged into config_db.json, for each port:
"""

LINUX = """\
qdisc add dev cnic root handle da7a: htb default 0x10
class add dev cnic parent da7a: classid da7a:1 htb rate 400000000bit ceil 400000000bit prio 0 burst 16384 cburst 16384 quantum 30000
class add dev cnic parent da7a:1 classid da7a:10 htb rate 396000000bit ceil 400000000bit prio 0 burst 16384 cburst 16384 quantum 30000
class add dev cnic parent da7a:1 classid da7a:12 htb rate 4000000bit ceil 400000000bit prio 1 burst 16384 cburst 16384 quantum 1514
filter add dev cnic parent da7a: protocol ip prio 10 u32 match ip dsfield 0x20 0xfc flowid da7a:12
filter add dev cnic parent da7a: protocol ipv6 prio 11 u32 match ip6 priority 0x20 0xfc flowid da7a:12"""  # noqa: E501

ENVIRONMENT = """\
# NCCL: the model's collectives
NCCL_IB_SL=0
NCCL_IB_TC=0
# UCX: load and store
UCX_IB_SL=2
UCX_IB_TRAFFIC_CLASS=32"""

ENVIRONMENT_THREE = """\
# NCCL: the model's collectives
NCCL_IB_SL=1
NCCL_IB_TC=184
# UCX: load
UCX_IB_SL=2
UCX_IB_TRAFFIC_CLASS=40
# UCX: store
UCX_IB_SL=4
UCX_IB_TRAFFIC_CLASS=32"""


def test_the_default_lanes_are_the_papers_on_infiniband():
    assert infiniband(LanesSpec()) == INFINIBAND


def test_lanes_of_three_levels_on_infiniband():
    assert infiniband(THREE) == INFINIBAND_THREE


def test_the_environment_of_the_libraries():
    assert environment(LanesSpec()) == ENVIRONMENT
    assert environment(THREE) == ENVIRONMENT_THREE


def test_cards_and_switches_of_roce():
    text = roce(LanesSpec())
    assert text.startswith(ROCE)
    switch = json.loads(text.removeprefix(ROCE))
    classes = switch["DSCP_TO_TC_MAP"]["DUALPATH"]
    assert len(classes) == 64
    assert {dscp for dscp, level in classes.items() if level != "0"} == {"8"}
    assert classes["8"] == "2"
    assert {name: one["weight"] for name, one in switch["SCHEDULER"].items()} == {
        "dualpath.0": "33",
        "dualpath.1": "33",
        "dualpath.2": "1",
        "dualpath.3": "33",
    }
    assert switch["PORT_QOS_MAP"]["IFACE"]["pfc_enable"] == "0,1,2,3"


def test_weights_of_roce_are_whole_percents_that_make_a_hundred():
    (line,) = [line for line in roce(THREE).splitlines() if "--tcbw=" in line]
    weights = [int(text) for text in line.partition("--tcbw=")[2].split(",")]
    assert weights == [30, 30, 8, 30, 2, 0, 0, 0]


def test_commands_of_linux():
    assert "\n".join(shaping_commands(lane_shaping(LanesSpec(), 50e6), "cnic")) == LINUX


def test_lanes_of_one_level_are_one_class():
    lanes = LanesSpec.model_validate({"load": {"service_level": 0}, "store": {"service_level": 0}})
    (one,) = link_classes(lanes)
    assert (one.lanes, one.dscps, one.share) == (("model", "load", "store"), (0, 8), 1.0)
    assert lane_shaping(lanes, 50e6).filters == ()


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (["--network=infiniband"], 0, "qos_vlarb_low 0:192,1:192,2:64,3:192"),
        (["--interface=eth7"], 0, "tc qdisc add dev eth7 root handle da7a: htb"),
        (["--network=token_ring"], 2, "--network=token_ring"),
        (["--apply"], 2, "--interface is empty: --apply needs one"),
        (["--apply", "--check", "--interface=x"], 2, "--apply and --check: expected one of them"),
        (["--network=roce", "--check", "--interface=x"], 2, "--check is for --network=linux"),
        (["--check", "--interface=nosuch0"], 2, 'Cannot find device "nosuch0": `ip link` lists what there is'),
    ],
)
def test_the_command(flags, status, says):
    done = subprocess.run(
        [sys.executable, "-m", "dualpath_jax.qos.main", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    lines = (done.stderr if status else done.stdout).splitlines()
    assert any(says in line for line in lines)
    assert status == 0 or (len(lines), done.stdout) == (1, "")


def test_it_needs_no_jax():
    code = "import sys, dualpath_jax.qos.main; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
