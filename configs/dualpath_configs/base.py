"""The base of every spec: frozen, strict, and closed to unknown keys."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen, validated piece of configuration.

    Unknown keys are refused, values are not coerced (`"4"` is not `4`) and must be finite, and instances hash and
    compare by value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)
