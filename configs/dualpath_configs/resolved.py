"""Resolved specs: a whole cluster spec in one JSON file, as one process hands it to another."""

from pathlib import Path

from pydantic import ValidationError

from dualpath_configs.base import all_keys
from dualpath_configs.cluster import ClusterSpec
from dualpath_configs.errors import SpecError, spec_error


def write_resolved(spec: ClusterSpec, path: Path) -> None:
    """Write every value of `spec`, defaults included."""
    path.write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_resolved(path: Path) -> ClusterSpec:
    """Read what `write_resolved` wrote. Raises SpecError, in one line, for anything else."""
    try:
        return ClusterSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise spec_error(error, all_keys(ClusterSpec), lambda key: str(path)) from error
