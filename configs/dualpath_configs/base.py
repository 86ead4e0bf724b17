"""The base of every spec: frozen, strict, and closed to unknown keys."""

from collections.abc import Iterator
from typing import get_args

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen, validated piece of configuration.

    Unknown keys are refused, values are not coerced (`"4"` is not `4`) and must be finite, and instances hash and
    compare by value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


def all_keys(spec: type[Spec], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a spec, tables included."""
    for name, field in spec.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Spec):
                yield from all_keys(kind, f"{prefix}{name}.")
