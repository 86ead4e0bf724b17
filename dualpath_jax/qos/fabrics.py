"""The lanes as InfiniBand and RoCE fabrics, and the libraries on them, are told about them: text for their files.

Nothing here has been tried on such a fabric: InfiniBand's options are the paper's (traffic), the others carry them
over.
"""

import json
from collections.abc import Sequence

from dualpath_configs import LanesSpec
from dualpath_jax.qos.classes import LinkClass, link_classes

VL_COUNTS = (2, 4, 8)
"""How many data virtual lanes a port can have, in OpenSM's `qos_max_vls`."""

SERVICE_LEVELS = 16
PRIORITIES = 8
LOSSLESS_CLASSES = 4
HIGH_LIMIT = 240
"""In 4 KiB: what the high table may send before the low one sends a packet."""

FULL_WEIGHT, KV_WEIGHT = 192, 64
"""In 64 bytes: what a virtual lane sends in its turn."""

INTERFACE = "IFACE"


def infiniband(lanes: LanesSpec) -> str:
    """Options for OpenSM's `opensm.conf`: the paper's arbitration of virtual lanes.

    The lanes of KV have no turn in the high table and a small one in the low table. Virtual lanes that no lane of ours
    uses are treated as the model's.
    """
    kv = [one for one in link_classes(lanes) if not one.is_model]
    count = next(count for count in VL_COUNTS if count > max(one.service_level for one in link_classes(lanes)))
    low = dict.fromkeys(range(count), FULL_WEIGHT) | _kv_weights(kv)
    high = {vl: 0 if any(one.service_level == vl for one in kv) else FULL_WEIGHT for vl in range(count)}
    vl_of_level = [level if level < count else 0 for level in range(SERVICE_LEVELS)]
    return "\n".join(
        [
            *_legend(lanes, "service level and virtual lane"),
            "qos TRUE",
            f"qos_max_vls {count}",
            f"qos_high_limit {HIGH_LIMIT}",
            f"qos_vlarb_high {_table(high)}",
            f"qos_vlarb_low {_table(low)}",
            f"qos_sl2vl {','.join(map(str, vl_of_level))}",
        ]
    )


def roce(lanes: LanesSpec) -> str:
    """What each host runs for its card (`mlnx_qos`, of the vendor's tools), and a SONiC switch's configuration.

    DSCP decides the traffic class; the classes of the lanes, and those below them, are lossless, four at least; weights
    are the shares of the lanes, in percent, where classes that no lane uses share the model's.
    """
    classes = max(LOSSLESS_CLASSES, 1 + max(one.service_level for one in link_classes(lanes)))
    weights = _percentages(lanes, classes)
    marks = [(dscp, one.service_level) for one in link_classes(lanes) for dscp in one.dscps]
    padding = [0] * (PRIORITIES - classes)
    return "\n".join(
        [
            *_legend(lanes, "traffic class and priority"),
            "# On each host, for the interface of each card in turn:",
            f"mlnx_qos -i {INTERFACE} --trust=dscp",
            *(f"mlnx_qos -i {INTERFACE} --dscp2prio=set,{dscp},{priority}" for dscp, priority in marks),
            f"mlnx_qos -i {INTERFACE} --prio_tc={_joined([*range(classes), *padding])}",
            f"mlnx_qos -i {INTERFACE} --tsa={_joined(['ets'] * PRIORITIES)} --tcbw={_joined([*weights, *padding])}",
            f"mlnx_qos -i {INTERFACE} --pfc={_joined([1] * classes + padding)}",
            "# On a SONiC switch, merged into config_db.json, for each port:",
            "{",
            ",\n".join(f'  "{name}": {json.dumps(table)}' for name, table in _sonic(lanes, weights).items()),
            "}",
        ]
    )


def environment(lanes: LanesSpec) -> str:
    """Variables for the processes: NCCL carries the model's collectives, UCX (NIXL) KV."""
    model, kv = lanes.model, {"load": lanes.load, "store": lanes.store}
    lines = [
        "# NCCL: the model's collectives",
        f"NCCL_IB_SL={model.service_level}",
        f"NCCL_IB_TC={model.dscp << 2}",
    ]
    alike = (lanes.load.service_level, lanes.load.dscp) == (lanes.store.service_level, lanes.store.dscp)
    titles = {"load and store": lanes.load} if alike else kv
    for title, lane in titles.items():
        lines += [
            f"# UCX: {title}",
            f"UCX_IB_SL={lane.service_level}",
            f"UCX_IB_TRAFFIC_CLASS={lane.dscp << 2}",
        ]
    return "\n".join(lines)


def _legend(lanes: LanesSpec, what: str) -> list[str]:
    return [
        f"# {one.title}: {what} {one.service_level}, DSCP {_joined(one.dscps)}, at least {100 * one.share:g} %"
        for one in link_classes(lanes)
    ]


def _kv_weights(kv: Sequence[LinkClass]) -> dict[int, int]:
    """KV's weight for the class with the largest share, and in proportion for the others."""
    largest = max((one.share for one in kv), default=1.0)
    return {one.service_level: max(1, round(KV_WEIGHT * one.share / largest)) for one in kv}


def _table(weights: dict[int, int]) -> str:
    return ",".join(f"{vl}:{weight}" for vl, weight in weights.items())


def _percentages(lanes: LanesSpec, classes: int) -> list[int]:
    """Whole percent for each traffic class, 100 together, at least 1 for each."""
    kv = {one.service_level: max(1, round(100 * one.share)) for one in link_classes(lanes) if not one.is_model}
    rest = [level for level in range(classes) if level not in kv]
    left = 100 - sum(kv.values())
    parts = {level: left // len(rest) + (index < left % len(rest)) for index, level in enumerate(rest)}
    return [(kv | parts)[level] for level in range(classes)]


def _sonic(lanes: LanesSpec, weights: Sequence[int]) -> dict[str, object]:
    level_of = {dscp: one.service_level for one in link_classes(lanes) for dscp in one.dscps}
    default = link_classes(lanes)[0].service_level
    queues = [str(level) for level in range(len(weights))]
    port = {"dscp_to_tc_map": "DUALPATH", "tc_to_queue_map": "DUALPATH", "tc_to_pg_map": "DUALPATH"}
    return {
        "DSCP_TO_TC_MAP": {"DUALPATH": {str(dscp): str(level_of.get(dscp, default)) for dscp in range(64)}},
        "TC_TO_QUEUE_MAP": {"DUALPATH": {level: level for level in queues}},
        "TC_TO_PRIORITY_GROUP_MAP": {"DUALPATH": {level: level for level in queues}},
        "SCHEDULER": {f"dualpath.{level}": {"type": "DWRR", "weight": str(weights[int(level)])} for level in queues},
        "QUEUE": {f"{INTERFACE}|{level}": {"scheduler": f"dualpath.{level}"} for level in queues},
        "PORT_QOS_MAP": {INTERFACE: {**port, "pfc_enable": ",".join(queues)}},
    }


def _joined(values: Sequence[object]) -> str:
    return ",".join(map(str, values))
