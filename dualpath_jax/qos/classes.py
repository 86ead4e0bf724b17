"""The lanes as a network sees them: classes, one for each service level."""

from dataclasses import dataclass

from dualpath_configs import LanesSpec


@dataclass(frozen=True)
class LinkClass:
    """The lanes of one service level, by their names, with their marks and what they are guaranteed together."""

    service_level: int
    lanes: tuple[str, ...]
    dscps: tuple[int, ...]
    share: float

    @property
    def is_model(self) -> bool:
        """Whether the model's collectives are in it."""
        return "model" in self.lanes

    @property
    def title(self) -> str:
        return " and ".join(self.lanes)


def link_classes(lanes: LanesSpec) -> tuple[LinkClass, ...]:
    """The classes, the most urgent first; the first is the model's, and of whatever no lane has marked."""
    specs = lanes.by_name
    classes = []
    for level in dict.fromkeys(lane.service_level for lane in specs.values()):
        mine = {name: lane for name, lane in specs.items() if lane.service_level == level}
        dscps = tuple(sorted({lane.dscp for lane in mine.values()}))
        classes.append(LinkClass(level, tuple(mine), dscps, sum(lane.share for lane in mine.values())))
    return tuple(classes)
