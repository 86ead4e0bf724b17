"""Layers of settings: each is the leaves of one TOML file, or of overrides, and remembers where they came from."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dualpath_configs.base import Spec
from dualpath_configs.errors import SpecError, closest, shown

KeyPath = tuple[str, ...]

_PACKAGE = resources.files("dualpath_configs")
PRESETS, SIMULATED = "presets", "simulated_presets"
"""The folders of presets: of clusters that run, and of clusters that are simulated."""

_EXTENDS = "extends"


@dataclass(frozen=True)
class Leaf:
    """A value, the file or override that set it, and the folder that a relative path in it starts from."""

    value: object
    source: str
    folder: Path


Layer = dict[KeyPath, Leaf]


def preset_names(presets: str = PRESETS) -> list[str]:
    """Names that `load_cluster` takes besides paths; of another folder of presets, those that its loader takes."""
    files = (_PACKAGE / presets).iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in files if entry.name.endswith(".toml"))


def read_file(
    name_or_path: str, *, folder: Path, presets: str = PRESETS, above: tuple[str, ...] = ()
) -> tuple[Layer, str]:
    """The leaves of a preset or TOML file, laid over those of what it `extends`; and how errors name that file.

    Args:
        folder: where a relative path starts.
        presets: the folder of presets that a name stands for.
        above: the files that extend this one, the nearest last.
    """
    source, data, own_folder = _read(name_or_path, folder, presets, above)
    table = _parse(source, data)
    base = table.pop(_EXTENDS, None)
    layer = dict(leaves(table, (), source, own_folder))
    if base is None:
        return layer, source
    if not isinstance(base, str):
        raise SpecError(f"{source}: {_EXTENDS} = {shown(base)}: expected the name of a preset or a TOML file")
    below, _ = read_file(base, folder=own_folder, presets=presets, above=(*above, source))
    return merged(below, layer), source


def read_overrides(overrides: Mapping[str, object]) -> Layer:
    """A layer from dotted keys. A table or a spec as a value stands for its fields; relative paths stay as they are."""
    layer: Layer = {}
    for key, value in overrides.items():
        fields = value.model_dump() if isinstance(value, Spec) else value
        *tables, name = key.split(".")
        layer = merged(layer, dict(leaves({name: fields}, tuple(tables), "override", Path())))
    return layer


def leaves(table: Mapping[str, object], prefix: KeyPath, source: str, folder: Path) -> Iterator[tuple[KeyPath, Leaf]]:
    """The leaves of `table`, which stands at `prefix`; an empty table is a leaf, so that an unknown one is noticed."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*prefix, name), source, folder)
        else:
            yield (*prefix, name), Leaf(_frozen(value), source, folder)


def merged(below: Layer, above: Layer) -> Layer:
    """`above` over `below`: a table keeps the keys that are not set again, anything else is replaced whole."""
    result = dict(below)
    for path, leaf in above.items():
        inside = [other for other in result if other[: len(path)] == path]
        if leaf.value == {} and inside:
            continue
        for other in inside + [path[:length] for length in range(1, len(path))]:
            result.pop(other, None)
        result[path] = leaf
    return result


def nested(layer: Layer) -> dict[str, object]:
    """The tables that a layer's leaves stand in."""
    root: dict[str, object] = {}
    for (*tables, name), leaf in layer.items():
        table: dict[str, object] = root
        for part in tables:
            inner = table.setdefault(part, {})
            assert isinstance(inner, dict)  # `merged` leaves no value where a table stands
            table = inner
        table[name] = leaf.value
    return root


def _frozen(value: object) -> object:
    """Arrays as tuples, as specs have them."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _read(name_or_path: str, folder: Path, presets: str, above: tuple[str, ...]) -> tuple[str, bytes, Path]:
    wanted = f"{above[-1]}: {_EXTENDS} = {name_or_path!r}: " if above else ""
    is_path = name_or_path.endswith(".toml") or "/" in name_or_path
    if is_path:
        path = folder / name_or_path
        source = str(path)
    else:
        source = f"preset {name_or_path}"
        names = preset_names(presets)
        if name_or_path not in names:
            meant = closest(name_or_path, names)
            hint = f" (the closest one is {meant})" if meant else ""
            known = ", ".join(names)
            raise SpecError(f"{wanted}no such preset: {name_or_path!r}: expected {known}, or a .toml file{hint}")
    if source in above:
        raise SpecError(f"{wanted}expected a file that does not in turn extend this one")
    if not is_path:
        return source, (_PACKAGE / presets / f"{name_or_path}.toml").read_bytes(), folder
    try:
        return source, path.read_bytes(), path.parent
    except OSError as error:
        raise SpecError(f"{wanted}{source}: cannot be read: {error.strerror}") from error


def _parse(source: str, data: bytes) -> dict[str, object]:
    """The tables of a TOML text. Raises SpecError with `file:line`."""
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{source}:{line}: not UTF-8 text: byte {data[error.start]:#04x}") from error
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(?P<what>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)", str(error), re.DOTALL)
        if found is None:  # "(at end of document)"
            raise SpecError(f"{source}:{data.count(10) + 1}: not TOML: {error}") from error
        raise SpecError(f"{source}:{found['line']}: not TOML: {found['what']} (column {found['column']})") from error
