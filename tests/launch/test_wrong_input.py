"""`dualpath-launch` with wrong input: one line that says what and where, exit status 2, nothing left running."""

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from dualpath_configs import ClusterSpec
from dualpath_jax.cluster.decode_node import DecodeNode
from dualpath_jax.cluster.services import node_services
from dualpath_jax.engine.build import build_engine
from dualpath_scheduler.service import SchedulerUnavailable
from tests.cluster.harness import small_spec
from tests.launch.commands import Ended, check_refused, run, run_unread
from tests.servers import free_port

GOLDEN = Path(__file__).parents[1] / "golden"
STORE = "--set=storage.url=file:///unused"
FAKE = "--set=engine.kind=fake"
NODE = ["--role=prefill", STORE, "--scheduler=h:1", "--node_id=a"]
PLACE = ["--coordinator_address=127.0.0.1:1", "--num_processes=2"]


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        ([], ["--role is missing: expected one of scheduler, prefill, decode"]),
        (["--role=router"], ["--role=router", "scheduler|prefill|decode"]),
        (["--role=scheduler", "--schedule=x"], ["Unknown command line flag 'schedule'", "scheduler"]),
        (["--role=scheduler", "local_1p1d"], ["unexpected argument 'local_1p1d': every option is a flag"]),
        (["--role=scheduler", "--config=local_1p3d"], ["no such preset: 'local_1p3d'", "local_1p2d"]),
        (["--role=scheduler", "--config=/no/such.toml"], ["/no/such.toml: cannot be read: No such file"]),
        (["--role=scheduler"], ["storage.url is empty: expected a store that all nodes reach, --set=storage.url="]),
        (["--role=scheduler", "--set=storage.url=memory://a"], ["'memory://a': processes share no memory", "file:///"]),
        (["--role=prefill", "--set=storage.url=faulty+tensorstore+memory://a?flip=1"], ["processes share no memory"]),
        (["--role=prefill", STORE], ["--scheduler is empty: --role=prefill needs it"]),
        (["--role=decode", STORE, "--scheduler=h:1"], ["--node_id is empty: --role=decode needs it"]),
        (["--role=decode", STORE, "--scheduler=h", "--node_id=a"], ["--scheduler=h: expected host:port"]),
        (["--role=scheduler", STORE, "--set=engines_per_node"], ["--set=engines_per_node: expected key=value"]),
        (["--role=scheduler", "--config=a.json", "--set=a=1"], ["--set=a=1", "a.json is whole already"]),
        (["--role=scheduler", "--set=storage.url=ftp://bucket"], ["storage.url = 'ftp://bucket'", "file:///folder"]),
        (["--role=scheduler", "--set=storage.url=file:///proc/no"], ["store folder /proc/no", "can be written to"]),
        (["--role=prefill", STORE, "--scheduler=h:1", "--node_id=a", "--platform=abacus"], ["platform 'abacus'"]),
        ([*NODE, *PLACE], ["--process_id is missing: expected --coordinator_address, --num_processes, --process_id"]),
        ([*NODE, *PLACE, "--process_id=2"], ["--process_id=2: expected 0 to 1, since --num_processes=2"]),
        ([*NODE, "--process_id=0", *PLACE, "--num_processes=3"], ["--num_processes=3: expected a divisor of engines"]),
        ([*NODE, "--process_id=1", "--coordinator_address=x", "--num_processes=2"], ["=x: expected host:port"]),
        ([*NODE, "--set=processes_per_node=3"], ["processes_per_node = 3: expected a divisor of engines_per_node (2)"]),
        (["--role=scheduler", STORE, "--process_id=0"], ["--process_id with --role=scheduler: expected no such flag"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and value[0].startswith("--") else "",
)
def test_wrong_flags_are_one_line(flags, texts):
    check_refused(run("dualpath-launch", *flags), "dualpath-launch: ", *texts)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("[network]\nsnic_bytes_per_sec = 3e7", "network.snic_bytes_per_sec = 30000000.0: expected no such key"),
        ('engines_per_node = "two"', "engines_per_node = 'two': expected an integer"),
        ("engines_per_node = 3", "engines_per_node = 3: expected a divisor of model.n_routed_experts (8)"),
        ("engines_per_node = ", ":2: not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, lines, text):
    file = tmp_path / "cluster.toml"
    file.write_text(f'extends = "local_1p1d"\n{lines}\n')
    check_refused(run("dualpath-launch", "--role=scheduler", f"--config={file}"), f"{file}", text)


@pytest.mark.parametrize("role", ["scheduler", "prefill"])
def test_a_port_in_use_is_named(tmp_path, role):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        store = f"--set=storage.url=file://{tmp_path}/kv"
        own = ["--node_id=a", "--scheduler=127.0.0.1:1"] if role == "prefill" else []
        ended = run("dualpath-launch", f"--role={role}", store, FAKE, f"--bind={address}", *own)
    check_refused(ended, f"--bind={address}: cannot listen there: Address already in use")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    flags = ["--role=prefill", STORE, "--scheduler=h:1", "--node_id=a", f"--set=checkpoint={tmp_path}/none"]
    check_refused(run("dualpath-launch", *flags), f"checkpoint = '{tmp_path}/none'", "config.json cannot be read")


def test_a_checkpoint_without_weights_is_named(tmp_path):
    shutil.copy(GOLDEN / "plain" / "config.json", tmp_path)
    ended = run(
        "dualpath-launch",
        "--role=prefill",
        STORE,
        "--scheduler=h:1",
        "--node_id=a",
        "--platform=cpu",
        f"--set=checkpoint={tmp_path}",
        "--set=max_context_tokens=64",
        "--set=engines_per_node=1",
    )
    check_refused(ended, f"{tmp_path}: no *.safetensors file")


def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    from dualpath_scheduler.service import NodeClient

    defaults = {**NodeClient.__init__.__kwdefaults__, "patience_s": 0.5}
    monkeypatch.setattr(NodeClient.__init__, "__kwdefaults__", defaults)


async def _serve(spec: ClusterSpec, scheduler: str) -> None:
    async with node_services(spec, build_engine(spec, "decode"), bind="127.0.0.1:0") as services:
        await DecodeNode(services, node_id="alone", scheduler=scheduler).run()


async def test_no_scheduler_is_waited_for_a_while_and_named(tmp_path, monkeypatch):
    """The command waits a minute, so that nodes may be started first; here it is half a second."""
    _little_patience(monkeypatch)
    address = f"127.0.0.1:{free_port()}"
    async with asyncio.timeout(20):
        with pytest.raises(SchedulerUnavailable, match=f"node alone found no scheduler at {address} for 0.5 s"):
            await _serve(small_spec(tmp_path), address)


@pytest.mark.parametrize("name", ["dualpath-launch", "dualpath-replay"])
def test_help_that_nobody_reads_to_its_end_is_no_error(name):
    assert run_unread(name, "--help") == Ended(0, "", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_flag(flag):
    ended = run("dualpath-launch", flag)
    assert (ended.status, ended.errors) == (0, "")
    for name in ("role", "config", "set", "bind", "scheduler", "node_id", "platform"):
        assert f"  --{name}:" in ended.output
