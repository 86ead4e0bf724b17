"""Every fault of docs/faults.md has tests, and they exist."""

import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "faults.md").read_text()
HEAD = ["fault", "expected", "tests"]


def rows() -> list[list[str]]:
    """The cells of every row, heads and rules left out."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line[:1] == "|"]
    return [row for row in cells if row != HEAD and not row[0].startswith("---")]


@functools.cache
def names_in(file: str) -> set[str]:
    path = ROOT / file
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)) if path.exists() else set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_names_in_a_fault_exist(row: list[str]) -> None:
    fault, expected, tests = row
    assert fault
    assert expected
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
    assert named
    assert re.sub(r"`[\w/]+\.py::\w+`", "", tests).strip() == ""
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_every_kind_has_a_table() -> None:
    kinds = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    without = [kind.splitlines()[0] for kind in kinds if "| fault | expected | tests |" not in kind]
    assert without in ([], ["Without a test"])
    assert len(rows()) > 25
