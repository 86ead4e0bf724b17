"""From names, files and overrides to specs, and one line for everything that is wrong."""

import re
from pathlib import Path

import pytest

from dualpath_configs import MODES, ModeSpec, SpecError, load_cluster


def write(folder: Path, text: str, name: str = "cluster.toml") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def error_of(name: str, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(SpecError) as caught:
        load_cluster(name, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_extends_a_preset_key_by_key(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "local_1p1d"\ndecode_nodes = 3\n[network]\nsnic_bytes_per_s = 12_000_000\n')
    spec = load_cluster(path)
    assert spec.decode_nodes == 3
    assert spec.network.snic_bytes_per_s == 12e6
    assert isinstance(spec.network.snic_bytes_per_s, float)
    assert spec.network.cnic_bytes_per_s == 400e6


def test_a_file_extends_one_beside_it_wherever_it_is_loaded_from(tmp_path: Path) -> None:
    write(tmp_path / "shapes", 'extends = "local_1p1d"\nprefill_nodes = 4\n', "base.toml")
    write(tmp_path / "shapes", 'extends = "base.toml"\ndecode_nodes = 5\n', "mine.toml")
    spec = load_cluster(str(tmp_path / "shapes" / "mine.toml"))
    assert (spec.prefill_nodes, spec.decode_nodes) == (4, 5)


def test_arrays_become_tuples(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "local_1p1d"\n[engine]\nprefix_token_buckets = [1024, 8192]\n')
    assert load_cluster(path).engine.prefix_token_buckets == (1024, 8192)
    assert load_cluster(path, {"engine.prefix_token_buckets": [512, 8192]}).engine.prefix_token_buckets == (512, 8192)


def test_overrides() -> None:
    spec = load_cluster(
        "local_1p1d",
        {"storage.url": "file:///blocks", "mode": "basic", "network.snic_bytes_per_s": None, "weights_version": 3},
    )
    assert spec.storage.url == "file:///blocks"
    assert spec.mode == MODES["basic"]
    assert spec.network.snic_bytes_per_s is None
    assert spec.network.cnic_bytes_per_s == 400e6
    assert spec.weights_version == 3


def test_a_mode_is_a_name_or_switches(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, 'extends = "local_1p1d"\nmode = "oracle"\n')).mode == MODES["oracle"]
    switches = load_cluster(write(tmp_path, 'extends = "local_1p1d"\n[mode]\nscheduling = false\n')).mode
    assert switches == ModeSpec(scheduling=False)
    assert load_cluster("local_1p1d", {"mode": ModeSpec(layerwise=False)}).mode == ModeSpec(layerwise=False)
    assert load_cluster("local_1p1d", {"mode.layerwise": False}).mode == ModeSpec(layerwise=False)


def test_a_name_replaces_switches_and_switches_replace_a_name(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "local_1p1d"\n[mode]\nscheduling = false\n', "switches.toml")
    assert load_cluster(write(tmp_path, 'extends = "switches.toml"\nmode = "basic"\n')).mode == MODES["basic"]
    write(tmp_path, 'extends = "local_1p1d"\nmode = "basic"\n', "named.toml")
    path = write(tmp_path, 'extends = "named.toml"\n[mode]\nscheduling = false\n')
    assert load_cluster(path).mode == ModeSpec(scheduling=False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[network]\nsnic_bytes_per_sec = 5", "network.snic_bytes_per_sec = 5: expected no such key; the closest "
         "valid key is network.snic_bytes_per_s"),
        ("snic_bytes_per_s = 5", "snic_bytes_per_s = 5: expected no such key; the closest valid key is "
         "network.snic_bytes_per_s"),
        ("[schedule]\nalpha_s = 2", "schedule = a table: expected no such key; the closest valid key is scheduling"),
        ("[netwrk]", "netwrk = a table: expected no such key; the closest valid key is network"),
        ("zzz = 1", "zzz = 1: expected no such key"),
        ("prefill_nodes = '2'", "prefill_nodes = '2': expected an integer"),
        ("prefill_nodes = 2.0", "prefill_nodes = 2.0: expected an integer"),
        ("prefill_nodes = true", "prefill_nodes = True: expected an integer"),
        ("prefill_nodes = 0", "prefill_nodes = 0: expected more than 0"),
        ("prefill_nodes = 2024-01-01", "prefill_nodes = datetime.date(2024, 1, 1): expected an integer"),
        ("[network]\nlanes.load.dscp = 64", "network.lanes.load.dscp = 64: expected at most 63"),
        (
            "[network.lanes]\nload.service_level = 3",
            "network.lanes.store.service_level = 2: expected that of load (3), whose dscp (8) it has: the "
            "network cannot tell them apart",
        ),
        (
            "[network.lanes]\nstore.share = 0.5",
            "network.lanes.store.share = 0.5: expected shares of at most 1 together, not 1.495",
        ),
        ("[network]\nsnic_bytes_per_s = inf", "network.snic_bytes_per_s = inf: expected a finite number"),
        ("[network]\nsnic_bytes_per_s = 'fast'", "network.snic_bytes_per_s = 'fast': expected a number"),
        ("[engine]\nkind = 'gpu'", "engine.kind = 'gpu': expected 'flax' or 'fake'"),
        ("[engine]\nprefill_token_buckets = 128", "engine.prefill_token_buckets = 128: expected an array"),
        ("[engine]\nprefill_token_buckets = [64, 'a']", "engine.prefill_token_buckets[1] = 'a': expected an integer"),
        ("[engine]\nprefill_token_buckets = []", "engine.prefill_token_buckets = (): expected at least 1 value(s)"),
        ("[engine]\nprefill_token_buckets = [512, 128]", "engine.prefill_token_buckets = (512, 128): expected "
         "increasing values"),
        ("network = 3", "network = 3: expected a table"),
        ("mode = 'fast'", "mode = 'fast': expected one of basic, dualpath, oracle, or a table of switches"),
        ("[mode]\nlayerwise = 1", "mode.layerwise = 1: expected true or false"),
        ("[storage]\nurl = 'ftp://x'", "storage.url = 'ftp://x': expected file:///folder, s3://bucket/prefix, "
         "gcs://bucket/prefix, mooncake://host:port/prefix, memory:// or an empty string"),
        ("[storage]\nurl = 's3://'", "storage.url = 's3://': expected file:///folder, s3://bucket/prefix, "
         "gcs://bucket/prefix, mooncake://host:port/prefix, memory:// or an empty string"),
        ("[model]\nn_group = 3", "model.n_group = 3: expected a divisor of n_routed_experts (8)"),
        ("[model]\nn_group = 8", "model.n_group = 8: expected at least two of n_routed_experts (8) in each group"),
        ("max_context_tokens = 9000", "max_context_tokens = 9000: expected at most model.max_position_embeddings "
         "(8192)"),
        ("host_buffer_blocks = 127", "host_buffer_blocks = 127: expected at least 128, the blocks of one request of "
         "max_context_tokens"),
        ("[engine]\ndecode_pages = 9", "engine.decode_pages = 9: expected at least 128, the blocks of one request of "
         "max_context_tokens"),
        ("[engine]\nshard_tokens = 96", "engine.shard_tokens = 96: expected a multiple of block_tokens (64)"),
        ("[engine]\nprefill_token_buckets = [100]", "engine.prefill_token_buckets = (100,): expected multiples of "
         "block_tokens (64)"),
        ("[engine]\nprefix_token_buckets = [8200]", "engine.prefix_token_buckets = (8200,): expected multiples of "
         "engine.shard_tokens (256)"),
        ("[engine]\nprefix_token_buckets = [4096]", "engine.prefix_token_buckets = (4096,): expected a largest one of "
         "at least max_context_tokens (8192)"),
        ("engines_per_node = 3", "engines_per_node = 3: expected a divisor of model.n_routed_experts (8)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, line: str, expected: str) -> None:
    path = write(tmp_path, f'extends = "local_1p1d"\n{line}\n')
    assert error_of(path) == f"{path}: {expected}"


def test_several_problems_are_counted_and_unknown_keys_come_first(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "local_1p1d"\nprefill_nodes = "2"\ndecode_nodes = -1\n[model]\nhiden_size = 3\n')
    assert error_of(path) == (
        f"{path}: model.hiden_size = 3: expected no such key; the closest valid key is model.hidden_size (and 2 more)"
    )


def test_a_missing_key(tmp_path: Path) -> None:
    path = write(tmp_path, "prefill_nodes = 1\ndecode_nodes = 1\n")
    assert error_of(path) == f"{path}: model is missing: expected a value"


def test_the_file_that_set_a_key_is_named(tmp_path: Path) -> None:
    base = write(tmp_path, 'extends = "local_1p1d"\nprefill_nodes = 0\n', "base.toml")
    path = write(tmp_path, 'extends = "base.toml"\ndecode_nodes = 2\n')
    assert error_of(path).startswith(f"{base}: prefill_nodes = 0")
    assert error_of("local_1p1d", {"engine.kind": "gpu"}).startswith("override: engine.kind")
    assert error_of("local_1p1d", {"max_context_tokens": 9000}).startswith("override: max_context_tokens")
    assert error_of("local_1p1d", {"model": {"n_group": 3}}).startswith("override: model.n_group")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('extends = "local_1p1d"\n\nprefill_nodes 3\n', r":3: not TOML: .*\(column 15\)"),
        ("a = 1\nb = [1,\n", r":3: not TOML: "),
        ("a = 1\na = 2\n", r":2: not TOML: Cannot overwrite a value"),
        ("a = '\xff", r":1: not TOML: "),
    ],
)
def test_broken_toml_has_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    assert re.match(re.escape(path) + expected, error_of(path))


def test_bytes_that_are_not_text_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    assert error_of(str(path)) == f"{path}:2: not UTF-8 text: byte 0xff"


def test_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    assert error_of("local_1p1") == (
        "no such preset: 'local_1p1': expected local_1p1d, local_1p2d, local_2p1d, testbed_1p1d, testbed_1p2d, "
        "or a .toml file (the closest one is "
        "local_1p1d)"
    )
    missing = str(tmp_path / "no.toml")
    assert error_of(missing) == f"{missing}: cannot be read: No such file or directory"
    path = write(tmp_path, 'extends = "no.toml"\n')
    assert error_of(path) == f"{path}: extends = 'no.toml': {missing}: cannot be read: No such file or directory"
    path = write(tmp_path, "extends = 3\n")
    assert error_of(path) == f"{path}: extends = 3: expected the name of a preset or a TOML file"


def test_a_circle_of_files(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    other = write(tmp_path, 'extends = "a.toml"\n', "b.toml")
    assert error_of(path) == f"{other}: extends = 'a.toml': expected a file that does not in turn extend this one"
