"""The paper's bottleneck table: what each card and memory carries while every storage card reads at its rate.

P prefill and D decode nodes read all the time, each S bytes a second, and each pair of a prefill and a decode engine
carries its even share. So a prefill node computes with the KV of (P + D) / P nodes, and what it carries is
`constant + slope · D/P`; what a decode node carries is `constant + slope · P/D`. A limit bounds P/D from below on the
one side and from above on the other.

The paper counts the KV of hit tokens alone. What else moves, KV of miss tokens back to the decode node and into its
device, generated KV out of it, complete blocks to storage, is in proportion to the hits and stands apart. Collectives
of the model are in neither: they get what a card's limit leaves.
"""

import math
from dataclasses import dataclass
from typing import Literal, final

from dualpath_configs import SimulatedSpec
from dualpath_scheduler.simulator.cost import Cost
from dualpath_scheduler.simulator.plan.mix import Mix
from dualpath_scheduler.simulator.simulation import computing


@final
@dataclass(frozen=True)
class Load:
    """`constant + slope · y` with y = D/P on the prefill side and P/D on the decode side."""

    constant: float = 0.0
    slope: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(self.constant + other.constant, self.slope + other.slope)


@final
@dataclass(frozen=True)
class Bounds:
    """Least and most P/D; none where `least` exceeds `most`."""

    least: float = 0.0
    most: float = math.inf

    def __and__(self, other: "Bounds") -> "Bounds":
        return Bounds(max(self.least, other.least), min(self.most, other.most))

    @property
    def any(self) -> bool:
        return self.least <= self.most


@final
@dataclass(frozen=True)
class Resource:
    """A card, a memory, or the engines' time: `hits` is the paper's load on one of them, `others` what it leaves out.

    In bytes a second; the rows of computing in seconds of an engine a second.
    """

    name: str
    side: Literal["prefill", "decode"]
    limit: float
    hits: Load
    others: Load = Load()
    computes: bool = False

    def at(self, load: Load, ratio: float) -> float:
        """The load at this P/D."""
        return load.constant + load.slope * (1 / ratio if self.side == "prefill" else ratio)

    def bounds(self, load: Load) -> Bounds:
        """Every P/D at which the load is within the limit."""
        room = self.limit - load.constant
        if room < 0 or (room == 0 and load.slope):
            return Bounds(math.inf, 0.0)
        if not load.slope:
            return Bounds()
        return Bounds(least=load.slope / room) if self.side == "prefill" else Bounds(most=room / load.slope)


@final
@dataclass(frozen=True)
class Rates:
    """Bytes a second: of a node's storage card, of an engine's compute card, of a node's memory."""

    snic: float
    cnic: float
    memory: float


def peak_rates(spec: SimulatedSpec) -> Rates:
    """As the hardware is sold, and as the paper counts."""
    hardware = spec.hardware
    return Rates(hardware.snic_bytes_per_s, hardware.cnic_bytes_per_s, hardware.memory_bytes_per_s)


def fitted_rates(spec: SimulatedSpec) -> Rates:
    """What the calibration says is reached."""
    peak, fitted = peak_rates(spec), spec.calibration
    return Rates(peak.snic * fitted.snic_efficiency, peak.cnic * fitted.cnic_efficiency, peak.memory)


def resources(spec: SimulatedSpec, mix: Mix, rates: Rates) -> list[Resource]:
    """The rows of the paper's table and, after them, those of what it leaves out."""
    engine = rates.snic / spec.engines_per_node
    node = rates.snic
    miss, generated, stored = (tokens / mix.hit for tokens in (mix.miss, mix.generated, mix.stored))
    out = miss + generated  # both pass a decode engine's card in both directions, of device memory and DRAM
    return [
        Resource("PE CNIC read", "prefill", rates.cnic, Load(2 * engine), _even(engine * miss)),
        Resource("PE CNIC write", "prefill", rates.cnic, _even(engine)),
        Resource("DE CNIC read", "decode", rates.cnic, Load(2 * engine, engine), _even(engine * out)),
        Resource("DE CNIC write", "decode", rates.cnic, Load(engine, 2 * engine), _even(engine * (out + miss))),
        Resource("PE memory", "prefill", rates.memory, Load(2 * node)),
        Resource("DE memory", "decode", rates.memory, Load(3 * node, 2 * node), _even(node * (out + miss + stored))),
        Resource("DE SNIC write", "decode", rates.snic, Load(), _even(node * stored)),
        *_computing(spec, mix, rates),
    ]


def admissible(rows: list[Resource], *, others: bool) -> Bounds:
    """P/D at which no card and no memory is in the way of the storage cards; computing is another matter."""
    bounds = Bounds()
    for row in rows:
        if not row.computes:
            bounds &= row.bounds(row.hits + row.others if others else row.hits)
    return bounds


def _even(load: float) -> Load:
    """What all P + D storage cards cause, spread over the nodes of one side."""
    return Load(load, load)


def _computing(spec: SimulatedSpec, mix: Mix, rates: Rates) -> list[Resource]:
    """Seconds of an engine that the requests of one storage card ask for, a second."""
    cost, _ = computing(spec)
    requests_per_s = rates.snic / (mix.hit * spec.model.kv_bytes_per_token) / spec.engines_per_node
    prefill_s, decode_s = _prefill_s(spec, cost, mix), _decode_s(spec, cost, mix)
    return [
        Resource("PE computing", "prefill", 1.0, Load(), _even(requests_per_s * prefill_s), computes=True),
        Resource("DE computing", "decode", 1.0, Load(), _even(requests_per_s * decode_s), computes=True),
    ]


def _prefill_s(spec: SimulatedSpec, cost: Cost, mix: Mix) -> float:
    """A mean request's share of a batch that fills the compute quota."""
    attention_s = cost.attention_s(round(mix.hit), max(1, round(mix.miss)))
    requests = max(1, int(spec.scheduling.compute_quota_s / attention_s))
    return cost.batch_s([requests * attention_s], [round(requests * mix.miss)]) / requests


def _decode_s(spec: SimulatedSpec, cost: Cost, mix: Mix) -> float:
    """A mean request's share of steps with as many requests as the KV memory of an engine holds."""
    context = mix.hit + mix.miss + mix.generated / 2
    requests = max(1, min(spec.decode_slots, int(spec.decode_tokens / (mix.hit + mix.miss + mix.generated))))
    step_s = cost.step_s([(requests, requests * context, requests * cost.attended(context))], clock=0.0)
    return mix.generated * step_s / requests
