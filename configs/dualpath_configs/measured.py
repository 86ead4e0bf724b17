"""What engines take to compute, as it was timed on their machine."""

from typing import Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from dualpath_configs.base import Spec


class MeasuredSpec(Spec):
    """Computing of the engine groups of one machine: lines through timed batches and steps.

    In a simulation it stands in for the roofline, that is for the rates of `hardware` and the constants of
    `calibration` that are about computing. Times are of a whole group whose engines have equal work; where one engine
    has more than the others, the group takes as long as that one alone, and a part of what the others have.
    """

    batch_widths: tuple[PositiveInt, ...] = Field(
        min_length=1, description="New tokens of an engine that a batch is padded to: the least that holds them counts."
    )
    batch_s: tuple[PositiveFloat, ...] = Field(description="A batch of each width, but for its attention.")
    pair_s: NonNegativeFloat = Field(description="A new token and one that it attends to, in all layers.")
    batch_alone: PositiveFloat = Field(
        default=1.0, le=1.0, description="Of a batch's attention, what it takes where only one engine has any."
    )
    batch_cores: PositiveFloat = Field(default=1.0, description="Cores that a batch keeps busy.")
    step_s: PositiveFloat = Field(description="A decode step, but for what follows.")
    step_request_s: NonNegativeFloat = Field(description="One request more on each engine, in a step.")
    step_token_s: NonNegativeFloat = Field(description="One token of context more on each engine, in a step.")
    step_alone: PositiveFloat = Field(
        default=1.0, le=1.0, description="Of these, what they take where only one engine has any."
    )
    step_cores: PositiveFloat = Field(default=1.0, description="Cores that a step keeps busy.")
    shared_cores: PositiveInt | None = Field(
        default=None, description="Cores of the machine, on which all groups compute; absent: enough for all."
    )
    tokens_per_s: PositiveFloat = Field(description="One engine's speed in prefill, cached tokens counted; β needs it.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if list(self.batch_widths) != sorted(set(self.batch_widths)):
            raise ValueError(f"batch_widths = {self.batch_widths}: expected increasing values")
        if len(self.batch_s) != len(self.batch_widths):
            raise ValueError(f"batch_s = {self.batch_s}: expected {len(self.batch_widths)} values, one of each width")
        return self
