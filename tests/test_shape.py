"""Sizes that keep the sources pleasant to read: files, functions, parameters. Tests and generated modules are free."""

import ast
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("dualpath_jax", "storage", "scheduler", "configs", "benchmarks", "tools")

MOST_FILE_LINES = 350
MOST_FUNCTION_LINES = 60
LONG_FUNCTION_LINES, MOST_LONG_SHARE = 50, 0.05
MOST_90TH_PERCENTILE_LINES = 35
MOST_PARAMETERS = 8


@dataclass(frozen=True)
class Function:
    """One function; its lines count from `def` to its end, docstring included, and the parameters without self."""

    where: str
    lines: int
    parameters: int


def source_files() -> list[pathlib.Path]:
    """All modules but the generated ones."""
    found = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def functions_of(where: str, source: str) -> Iterator[Function]:
    """Every function, methods and nested ones included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = node.args
            declared = [*names.posonlyargs, *names.args, *names.kwonlyargs, names.vararg, names.kwarg]
            parameters = [name.arg for name in declared if name is not None]
            own = parameters[1:] if parameters[:1] in (["self"], ["cls"]) else parameters
            assert node.end_lineno is not None
            yield Function(f"{where}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1, len(own))


def all_functions() -> list[Function]:
    files = source_files()
    return [f for path in files for f in functions_of(str(path.relative_to(ROOT)), path.read_text())]


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}
    assert len(lengths) > 100
    assert {path: lines for path, lines in lengths.items() if lines > MOST_FILE_LINES} == {}


def test_no_function_is_long():
    assert [function for function in all_functions() if function.lines > MOST_FUNCTION_LINES] == []


def test_few_functions_fill_more_than_a_screen():
    lines = sorted(function.lines for function in all_functions())
    long = [count for count in lines if count > LONG_FUNCTION_LINES]
    assert len(long) <= MOST_LONG_SHARE * len(lines)
    assert lines[len(lines) * 9 // 10] <= MOST_90TH_PERCENTILE_LINES


def test_parameters_are_few():
    assert [function for function in all_functions() if function.parameters > MOST_PARAMETERS] == []


def test_functions_are_measured_as_they_are_read():
    source = """
class A:
    @property
    def one(self, b, /, *c, d=1, **e):
        def inner(x):
            return x

        return inner
async def two(): return 1
"""
    found = {function.where.split()[1]: (function.lines, function.parameters) for function in functions_of("", source)}
    assert found == {"one": (5, 4), "inner": (2, 1), "two": (1, 0)}
