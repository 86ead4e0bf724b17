"""Resolved specs: what one process writes, another reads; anything else is one line that names file, key and value."""

from pathlib import Path

import pytest

from dualpath_configs import SpecError, load_cluster
from dualpath_configs.resolved import read_resolved, write_resolved


def error_of(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_resolved(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    spec = load_cluster("local_1p2d", {"mode": "basic", "storage.url": "file:///kv/größer", "block_tokens": 32})
    write_resolved(spec, tmp_path / "spec.json")
    assert read_resolved(tmp_path / "spec.json") == spec


@pytest.mark.parametrize(
    ("text", "replacement", "error"),
    [
        (
            '"block_tokens"',
            '"block_token"',
            "block_token = 64: expected no such key; the closest valid key is block_to",
        ),
        ('"block_tokens": 64', '"block_tokens": "64"', "block_tokens = '64': expected an integer"),
        ('"prefill_nodes": 1,', "", "prefill_nodes is missing: expected a value"),
        (
            '"engines_per_node": 2',
            '"engines_per_node": 3',
            "engines_per_node = 3: expected a divisor of model.n_routed",
        ),
        ('"url": ""', '"url": "ftp://a"', "storage.url = 'ftp://a': expected file:///folder"),
    ],
)
def test_a_wrong_value_is_named_as_in_a_config(tmp_path: Path, text: str, replacement: str, error: str) -> None:
    path = tmp_path / "spec.json"
    write_resolved(load_cluster("local_1p1d"), path)
    written = path.read_text()
    assert text in written
    path.write_text(written.replace(text, replacement, 1))
    assert error_of(path).startswith(f"{path}: {error}")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\xff\xfe{}", "not JSON: "),
        (b'{"block_tokens": ', "not JSON: "),
        (b"", "not JSON: "),
        (b"[1]", "[1]: expected a table"),
    ],
)
def test_what_is_no_spec_is_one_line(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(content)
    assert error_of(path).startswith(f"{path}: {error}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none.json") == f"{tmp_path}/none.json cannot be read: No such file or directory"
