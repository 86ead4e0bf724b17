"""What the READMEs say is so: their code runs, their commands, flags, presets and files exist. On the fake engine."""

import functools
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import dualpath_configs
import dualpath_jax
from dualpath_configs import MODES, ClusterSpec, load_cluster, preset_names
from dualpath_jax.launch import local
from dualpath_scheduler.report import NodeRecord, RunRecord, format_table, summarise
from dualpath_scheduler.workload import load_trace, trace_names
from tests import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "README.md",
    *(f"{name}/README.md" for name in ("configs", "storage", "scheduler", "dualpath_jax", "tests")),
)
GUIDES = (*DOCUMENTS, *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
README = (ROOT / "README.md").read_text()
SCRIPTS = pathlib.Path(sys.executable).parent

WITHOUT_MODEL = {"engine.kind": "fake", "network.snic_bytes_per_s": None, "network.cnic_bytes_per_s": None}
STORE = "file:///tmp/dualpath-kv"
ADDRESS = re.compile(r"127\.0\.0\.1:(70\d\d)")


def blocks(language: str, document: str = "README.md") -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The commands of the README's shell blocks and console transcripts."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    lines += [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]
    return [shlex.split(line) for line in lines]


def prose(document: str = "README.md") -> str:
    """The text outside fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def flags_of(command: str) -> set[str]:
    """What `--help` lists, and what every command has."""
    result = subprocess.run([SCRIPTS / command, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return {"flagfile", *re.findall(r"^  --(?:\[no\])?(\w+)", result.stdout, re.MULTILINE)}


def without_model(name: str, overrides: dict[str, object] | None = None) -> ClusterSpec:
    return load_cluster(name, {**WITHOUT_MODEL, **(overrides or {})})


def test_commands_and_their_flags_exist():
    used = [command for command in commands() if command[0].startswith("dualpath-")]
    assert {command[0] for command in used} == {f"dualpath-{name}" for name in ("replay", "launch", "qos", "testbed")}
    for command, *arguments in used:
        given = {argument.removeprefix("--").partition("=")[0] for argument in arguments}
        assert given <= flags_of(command), command


def test_flags_in_the_text_exist():
    named = set(re.findall(r"`--(\w+)", prose()))
    assert {
        "config",
        "set",
        "trace",
        "mode",
        "compare",
        "report",
        "scale",
        "max_sessions",
        "max_turns",
        "seed",
    } <= named
    isolation = {"role"}  # of a module that is no command
    commands = ("dualpath-replay", "dualpath-launch", "dualpath-qos", "dualpath-testbed")
    assert named <= isolation.union(*map(flags_of, commands))


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for document in GUIDES for name in re.findall(r"`make ([\w-]+)", (ROOT / document).read_text())}
    assert {"demo", "test"} <= targets
    assert targets <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


@functools.cache
def tree() -> frozenset[str]:
    """Every file and folder of the project, as paths that begin with a slash."""
    tops = [path for path in ROOT.iterdir() if path.name != "build" and not path.name.startswith(".")]
    return frozenset(f"/{path.relative_to(ROOT)}" for top in tops for path in [top, *top.rglob("*")])


@pytest.mark.parametrize("document", GUIDES)
def test_files_that_are_named_exist(document):
    text = prose(document)
    links = [name for name in re.findall(r"\]\(([^)]+)\)", text) if "://" not in name]
    assert [name for name in links if not ((ROOT / document).parent / name).exists()] == []
    names = re.findall(r"`([\w./-]+(?:\.(?:py|toml|md|proto|jsonl)|/))(?:::\w+)?`", text)
    kept = [name.rstrip("/") for name in names if not name.startswith((".venv", "build/", "mine."))]
    assert [name for name in kept if not any(path.endswith(f"/{name}") for path in tree())] == []


@pytest.mark.parametrize("document", GUIDES)
def test_functions_that_are_named_exist(document):
    named = re.findall(r"`(?:[\w/]+/)?(\w+\.py)::(\w+)`|`([A-Z]\w+)\.(\w+)`", prose(document))
    sources = {path: (ROOT / path[1:]).read_text() for path in tree() if path.endswith((".py", ".pyi"))}
    missing = [
        f"{file or owner}: {function or method}"
        for file, function, owner, method in named
        if not any(
            (path.endswith(f"/{file}") if file else f"class {owner}" in source)
            and re.search(rf"\b(?:def {function or method}\(|{function or method}:)", source)
            for path, source in sources.items()
        )
    ]
    assert missing == []


def test_presets_traces_and_exports_exist():
    assert set(preset_names()) <= set(re.findall(r"\b(?:local|testbed)_\dp\w+", README)) <= set(preset_names())
    assert set(re.findall(r"\bpaper-\d+k\b", README)) <= set(trace_names())
    exported = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", README))
    assert "InvalidRequest" in exported
    assert exported <= set(dualpath_jax.__all__)


def test_the_table_of_modes_is_the_modes():
    rows = [
        re.split(r"\s*\|\s*", row.strip("| ")) for row in re.findall(r"^\| (?:mode|`.*`) \|.*$", README, re.MULTILINE)
    ]
    switches = [cell.strip("`") for cell in rows[[row[0] for row in rows].index("mode")][1:5]]
    told = {row[0].strip("`"): dict(zip(switches, row[1:5], strict=True)) for row in rows if row[0].strip("`") in MODES}
    is_on = {True: "yes", False: "no"}
    assert told == {name: {s: is_on[on] for s, on in mode.model_dump().items()} for name, mode in MODES.items()}


def test_the_demo_table_has_the_rows_that_the_demo_prints():
    (shown,) = re.findall(r"<!-- demo-table -->\n```\n(.*?)\n```\n<!-- demo-table -->", README, re.DOTALL)
    nodes = tuple(NodeRecord(f"{role}-0", role, 0, 0, 0.0, (), (), True, None) for role in ("decode", "prefill"))
    printed = format_table(summarise([RunRecord(mode, 0.0, 0.0, (), nodes) for mode in MODES]))
    assert [re.split(r"\s{2,}", line)[0] for line in shown.splitlines()] == [
        re.split(r"\s{2,}", line)[0] for line in printed.splitlines()
    ]
    assert shown.splitlines()[0].split() == list(MODES)


@pytest.mark.parametrize(
    ("document", "code"),
    [(document, code) for document in DOCUMENTS for code in blocks("python", document) if "Client(" not in code],
    ids=lambda value: value if str(value).endswith(".md") else "",
)
def test_python_code_runs(document, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "load_cluster", without_model)
    monkeypatch.setattr(dualpath_configs, "load_cluster", without_model)
    exec(compile(code, document, "exec"), {"__name__": "__main__"})


def test_the_configuration_file_loads(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(text)
    spec = load_cluster(str(tmp_path / "mine.toml"))
    assert spec.storage.url == STORE
    assert spec.decode_nodes == 2
    assert spec.model == load_cluster("local_1p1d").model


def test_transcripts_are_what_the_commands_say(tmp_path):
    (tmp_path / "mine.toml").write_text(blocks("toml")[0])
    for command, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks("console")[0], re.MULTILINE):
        name, *arguments = shlex.split(command)
        result = subprocess.run(
            [SCRIPTS / name, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr) == (2, said)


def test_trace_lines_load(tmp_path):
    for index, text in enumerate(blocks("json")):
        path = tmp_path / f"{index}.jsonl"
        path.write_text(text)
        trace = load_trace(str(path), vocab_size=2048)
        assert sum(len(session.turns) for session in trace.sessions) == 2


def test_the_trace_generator_runs_as_written(tmp_path):
    (command,) = [command for command in commands() if command[0] == "python"]
    (tmp_path / "build").mkdir()
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    trace = load_trace(str(tmp_path / "build" / "mine.jsonl"), vocab_size=2048)
    assert len(trace.sessions) == 20


def test_a_replay_runs_as_written(tmp_path):
    command, *arguments = next(command for command in commands() if command[0] == "dualpath-replay")
    short = ["--set=engine.kind=fake", "--scale=0.1", "--max_sessions=2", "--max_turns=2", "--check_requests=2"]
    result = subprocess.run(
        [SCRIPTS / command, *arguments, *short], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "dualpath agrees with the no-cache reference" in result.stdout
    written = {path.name for path in (tmp_path / "build" / "report").iterdir()}
    assert written == set(re.findall(r"`(\w+\.(?:json|csv|png))`", README)) - {"config.json", "cards.json"}


def test_a_cluster_is_put_together_by_hand(tmp_path, capsys):
    named = set(ADDRESS.findall(README))
    ports = dict(zip(named, map(str, servers.free_ports(len(named))), strict=True))

    def mine(text: str) -> str:
        return ADDRESS.sub(lambda found: f"127.0.0.1:{ports[found[1]]}", text).replace(
            STORE, f"file://{tmp_path / 'kv'}"
        )

    launched = [command for command in commands() if command[0] == "dualpath-launch"]
    (code,) = [code for code in blocks("python") if "Client(" in code]
    processes = []
    try:
        for command in launched:
            arguments = [*map(mine, command[1:]), "--set=engine.kind=fake", "--stop_with_stdin"]
            with (tmp_path / f"{len(processes)}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen([SCRIPTS / command[0], *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log)
                )
        exec(compile(mine(code), "README.md", "exec"), {"__name__": "__main__"})
    finally:
        for process in reversed(processes):
            process.terminate()
            process.communicate(timeout=20)
    assert re.fullmatch(r"\[\d+(, \d+){7}\]\n", capsys.readouterr().out)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert f"prefill-0 is ready at {mine('127.0.0.1:7001')}" in (tmp_path / "1.log").read_text()
