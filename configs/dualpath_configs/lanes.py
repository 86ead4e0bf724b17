"""How a network knows the lanes of the compute network apart, and what each may have of it."""

from typing import Self

from pydantic import Field, PositiveFloat, model_validator

from dualpath_configs.base import Spec


class LaneSpec(Spec):
    """One lane, with the paper's defaults for KV.

    Lanes of one service level are one class to the network, and have their shares together.
    """

    dscp: int = Field(default=8, ge=0, le=63, description="Mark of its packets on IP networks, RoCE's included.")
    service_level: int = Field(
        default=2, ge=0, le=7, description="InfiniBand service level and virtual lane, RoCE traffic class and priority."
    )
    share: PositiveFloat = Field(
        default=0.005, le=1.0, description="Of the link, what it gets at least; what others leave comes on top."
    )


class ModelLaneSpec(LaneSpec):
    """The lane of the model's collectives."""

    dscp: int = Field(default=0, ge=0, le=63)
    service_level: int = Field(default=0, ge=0, le=7)
    share: PositiveFloat = Field(default=0.99, le=1.0)


class LanesSpec(Spec):
    """The lanes, from the most urgent (paper, traffic): virtual lane 2 is KV's, and about 99 % the model's."""

    model: ModelLaneSpec = ModelLaneSpec()
    load: LaneSpec = LaneSpec()
    store: LaneSpec = LaneSpec()

    @property
    def by_name(self) -> dict[str, LaneSpec]:
        """The lanes by their names, the most urgent first."""
        return {"model": self.model, "load": self.load, "store": self.store}

    @model_validator(mode="after")
    def _check(self) -> Self:
        lanes = self.by_name
        total = sum(lane.share for lane in lanes.values())
        if total > 1.0 + 1e-9:
            raise ValueError(
                f"store.share = {self.store.share!r}: expected shares of at most 1 together, not {total:g}"
            )
        levels: dict[int, tuple[str, int]] = {}
        for name, lane in lanes.items():
            other, level = levels.setdefault(lane.dscp, (name, lane.service_level))
            if level != lane.service_level:
                raise ValueError(
                    f"{name}.service_level = {lane.service_level!r}: expected that of {other} ({level}), whose dscp "
                    f"({lane.dscp}) it has: the network cannot tell them apart"
                )
        return self
