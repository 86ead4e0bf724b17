"""The committed protocol-buffer modules are what their .proto files say."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("protos", ROOT / "tools" / "protos.py")
assert SPEC is not None
assert SPEC.loader is not None
protos = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(protos)


def test_the_generated_modules_are_up_to_date(tmp_path: pathlib.Path) -> None:
    stale = []
    for generated in protos.generate(tmp_path):
        committed = ROOT / generated.relative_to(tmp_path)
        if not committed.exists() or committed.read_text() != generated.read_text():
            stale.append(str(committed.relative_to(ROOT)))
    assert not stale, f"run `make protos`: {stale}"


def test_every_proto_file_is_generated() -> None:
    listed = {ROOT / base / proto for base, proto in protos.PROTOS}
    sources = (ROOT / "dualpath_jax", ROOT / "scheduler", ROOT / "storage", ROOT / "configs")
    found = {path for folder in sources for path in folder.rglob("*.proto")}
    assert found == listed


def test_a_faulty_proto_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.proto").write_text("syntax = 'proto3'; message {")
    monkeypatch.setattr(protos, "ROOT", tmp_path)
    monkeypatch.setattr(protos, "PROTOS", ((".", "bad.proto"),))
    with pytest.raises(RuntimeError, match=r"protoc failed on bad\.proto with status"):
        protos.generate(tmp_path / "out")
