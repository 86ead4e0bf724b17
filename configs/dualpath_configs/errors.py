"""One clear line for a spec that is wrong: the file, the dotted key, the value received, and what was expected."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

Key = tuple[str | int, ...]
"""Where a value stands: names of tables and fields, and positions in arrays."""

_SHOWN_CHARACTERS = 80

_EXPECTED: dict[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "an array",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} value(s)",
    "string_pattern_mismatch": "a string that matches {pattern}",
}


class SpecError(ValueError):
    """A spec, preset or model configuration that is wrong, in one line."""


def dotted(key: Key) -> str:
    """`("engine", "buckets", 1)` as `engine.buckets[1]`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: object) -> str:
    """A value as an error shows it, cut where it is long."""
    text = "a table" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def closest(key: str, valid: Iterable[str]) -> str | None:
    """The valid dotted key that was probably meant: the same name in another table, or a similar spelling."""
    candidates = sorted(valid)
    leaf = key.rpartition(".")[2]
    elsewhere = [candidate for candidate in candidates if candidate.rpartition(".")[2] == leaf]
    return next(iter(elsewhere or difflib.get_close_matches(key, candidates, n=1)), None)


def spec_error(error: ValidationError, valid: Iterable[str], source_of: Callable[[Key], str]) -> SpecError:
    """The first problem of a failed validation, unknown keys before others, and how many more there are.

    Args:
        valid: every dotted key that exists, for the suggestion beside an unknown one.
        source_of: names the file (or the override) that a key came from.
    """
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    key, sentence = _explained(problems[0], valid)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return SpecError(f"{source_of(key)}: {sentence}{more}")


def _explained(problem: Any, valid: Iterable[str]) -> tuple[Key, str]:
    """The key that a problem is about, and the problem in one sentence."""
    key: Key = problem["loc"]
    if problem["type"] == "missing":
        return key, f"{dotted(key)} is missing: expected a value"
    if problem["type"] == "json_invalid":
        return key, f"not JSON: {problem['ctx']['error']}"
    if problem["type"] == "value_error":
        # Raised by a spec's own check, which names the key inside that spec, or says only what was expected.
        message = str(problem["ctx"]["error"])
        named = re.match(r"([a-z_.]+) = ", message)
        if named:
            within = (*key, *named[1].split("."))
            return within, dotted(key) + "." * bool(key) + message
        return key, f"{_received(problem)}: {message}"
    return key, f"{_received(problem)}: expected {_expectation(problem, valid)}"


def _received(problem: Any) -> str:
    """The value, and its key unless it is the whole file."""
    key: Key = problem["loc"]
    return f"{dotted(key)} = {shown(problem['input'])}" if key else shown(problem["input"])


def _expectation(problem: Any, valid: Iterable[str]) -> str:
    kind = problem["type"]
    if kind == "extra_forbidden":
        meant = closest(dotted(problem["loc"]), valid)
        return "no such key" + (f"; the closest valid key is {meant}" if meant else "")
    if kind in _EXPECTED:
        return _EXPECTED[kind].format(**problem.get("ctx", {}))
    return str(problem["msg"])
