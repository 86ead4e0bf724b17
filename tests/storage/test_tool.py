"""`dualpath-store` on every kind of store: what it says, what it deletes and copies, and how it ends."""

import json
import os
import re
import secrets
import shlex
import tomllib
from pathlib import Path

import pytest

from dualpath_storage import open_store
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.tool import command
from tests.mooncake import Mooncake
from tests.storage.blocks import (
    FILE_BYTES,
    LAYOUT,
    OTHER_LAYOUT,
    REPOSITORY,
    Block,
    chain,
    overwrite,
    put_all,
    raw,
    statuses,
)
from tests.storage.conftest import OBJECT_KINDS, object_url


@pytest.fixture(params=["file", "memory", "faulty", "tensorstore+file", "s3", "mooncake"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is not there yet."""
    if request.param == "mooncake":
        place: Mooncake = request.getfixturevalue("mooncake")
        return place.url()
    if request.param in OBJECT_KINDS:
        return object_url(request.param, request, tmp_path)
    kinds = {"file": f"file://{tmp_path}/store", "memory": f"memory://{secrets.token_hex(4)}"}
    return kinds.get(request.param, f"faulty+{kinds['file']}")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/target"


async def fill(url: str, blocks: list[Block]) -> None:
    store = opened(url)
    await put_all(store, blocks)
    await store.close()


def opened(url: str) -> MediumStore:
    store = open_store(url, LAYOUT)
    assert isinstance(store, MediumStore)
    return store


async def damage(url: str, block: Block, *, at: int) -> None:
    """Flip a bit."""
    store = opened(url)
    whole = raw(store, block)
    overwrite(store, block, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    await store.close()


async def held(url: str, blocks: list[Block]) -> list[str]:
    store = opened(url)
    try:
        return await statuses(store, blocks)
    finally:
        await store.close()


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, object]:
    """What a subcommand prints as JSON."""
    assert command.main([*arguments, "--json"]) == status
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


async def test_stat_counts_blocks_layouts_and_the_trie(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    long, short = chain(7), chain(3, seed=1)
    await fill(url, [*long, *short])
    other = open_store(url, OTHER_LAYOUT)
    assert isinstance(other, MediumStore)
    await put_all(other, chain(2, seed=2, layout=OTHER_LAYOUT))
    await other.close()
    await damage(url, long[6], at=50)
    found = told(capsys, "stat", url, status=1)
    sizes = {"layers": 3, "block_bytes": LAYOUT.block_bytes}
    assert found == {
        "blocks": 11,
        "bytes": 11 * FILE_BYTES,
        "roots": 3,
        "leaves": 3,
        "depth_blocks": 6,
        "layouts": [
            {"layout": LAYOUT.digest.hex(), "blocks": 9, **sizes},
            {"layout": OTHER_LAYOUT.digest.hex(), "blocks": 2, **sizes},
        ],
        "damaged_headers": [
            {"key": long[6].key.hex(), "reason": "the header's checksum does not hold", "readable": True}
        ],
    }
    assert command.main(["stat", url]) == 1
    assert "trie: 3 roots, 3 leaves, 6 blocks deep\n" in capsys.readouterr().out


async def test_a_chain_with_a_gap_has_two_roots(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = chain(5)
    await fill(url, blocks[:2] + blocks[3:])
    found = told(capsys, "stat", url)
    assert [found[name] for name in ("blocks", "roots", "leaves", "depth_blocks")] == [4, 2, 2, 2]


async def test_ls_is_a_line_a_block(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = chain(60)
    await fill(url, blocks)
    assert command.main(["ls", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"{one.key.hex()} {one.parent.hex()} {FILE_BYTES}" for one in blocks)
    assert command.main(["ls", url, "--limit=7", "--json"]) == 0
    few = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f"{one['key']} {one['parent']} {one['bytes']}" for one in few] == lines[:7]


async def test_verify_lists_every_damaged_block_with_its_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = chain(40)
    await fill(url, blocks)
    assert told(capsys, "verify", url) == {"blocks": 40, "bytes": 40 * FILE_BYTES, "damaged": [], "deleted": 0}
    store = opened(url)
    whole = raw(store, blocks[5])
    overwrite(store, blocks[9], whole)
    overwrite(store, blocks[11], whole[:-1])
    overwrite(store, blocks[13], raw(store, blocks[13]) + b"x")
    overwrite(store, blocks[15], whole[:1])
    await store.close()
    await damage(url, blocks[7], at=FILE_BYTES - 1)
    found = told(capsys, "verify", url, status=1)
    damaged = found["damaged"]
    assert isinstance(damaged, list)
    reasons = {one["key"]: one["reason"] for one in damaged}
    assert reasons == {
        blocks[7].key.hex(): "layer 2's checksum does not hold",
        blocks[9].key.hex(): f"holds another block, {blocks[5].key.hex()}",
        blocks[11].key.hex(): f"holds another block, {blocks[5].key.hex()}",
        blocks[13].key.hex(): f"has trailing bytes after its {FILE_BYTES}",
        blocks[15].key.hex(): "truncated: 1 bytes of a header of 4096",
    }
    assert (found["blocks"], found["deleted"]) == (35, 0)
    assert "corrupt" in await held(url, blocks)


async def test_verify_deletes_what_is_damaged_and_nothing_else(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = chain(20)
    await fill(url, blocks)
    for bad in (3, 11):
        await damage(url, blocks[bad], at=4096 + bad)
    assert command.main(["verify", url, "--delete"]) == 1
    assert "18 blocks of " in (out := capsys.readouterr().out)
    assert "2 damaged, 2 of them deleted\n" in out
    assert await held(url, blocks) == ["missing" if i in (3, 11) else "ok" for i in range(20)]
    assert told(capsys, "verify", url)["damaged"] == []


async def test_a_block_that_cannot_be_read_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = chain(6)
    plain = f"file://{tmp_path}/store"
    await fill(plain, blocks)
    found = told(capsys, "verify", f"faulty+{plain}?error=1", "--delete", status=1)
    damaged = found["damaged"]
    assert isinstance(damaged, list)
    assert [one["readable"] for one in damaged] == [False] * 6
    assert "the device reports an error" in damaged[0]["reason"]
    assert await held(plain, blocks) == ["ok"] * 6


async def test_damage_that_was_mended_is_not_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The device flips a bit of every other read, so each block verifies when it is read again."""
    blocks = chain(30)
    plain = f"file://{tmp_path}/store"
    await fill(plain, blocks)
    found = told(capsys, "verify", f"faulty+{plain}?flip=0.3&seed=4", "--delete", status=1)
    damaged = found["damaged"]
    assert isinstance(damaged, list)
    assert isinstance(found["deleted"], int)
    assert found["deleted"] < len(damaged)
    assert (await held(plain, blocks)).count("missing") == found["deleted"]


def use(tmp_path: Path, block: Block, at_s: float) -> None:
    name = block.key.hex()
    os.utime(tmp_path / "store" / name[:2] / f"{name}.kv", (at_s, at_s))


async def test_eviction_takes_leaves_and_the_least_recently_used_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = chain(4), chain(4, seed=1)
    url = f"file://{tmp_path}/store"
    await fill(url, [*old, *new])
    for index, (one, other) in enumerate(zip(old, new, strict=True)):
        use(tmp_path, one, 1000 + index)
        use(tmp_path, other, 2000 - 500 * index)  # its leaf is the coldest of all, its root the hottest
    assert told(capsys, "evict", url, f"--bytes={FILE_BYTES}")["blocks"] == 1
    assert await held(url, new) == ["ok"] * 3 + ["missing"]
    for index, one in enumerate([*old, *new]):
        if index != 7:
            use(tmp_path, one, 1000 + index)
    assert told(capsys, "evict", url, f"--bytes={3 * FILE_BYTES + 1}")["left_blocks"] == 3
    assert await held(url, old) == ["missing"] * 4
    assert await held(url, new) == ["ok"] * 3 + ["missing"]


async def test_looking_at_a_store_is_no_use_of_its_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = chain(3)
    url = f"file://{tmp_path}/store"
    await fill(url, blocks)
    for one in blocks:
        use(tmp_path, one, 1000)
    assert command.main(["stat", url]) == command.main(["ls", url]) == 0
    files = list((tmp_path / "store").glob("*/*.kv"))
    assert [file.stat().st_atime for file in files] == [1000.0] * 3


@pytest.mark.parametrize("blocks_asked", range(0, 14, 3))
async def test_eviction_leaves_no_gap_in_any_prefix(
    url: str, blocks_asked: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = chain(5)
    branch = [*stem[:2], *chain(5, seed=1)]
    await fill(url, [*stem, *branch[2:]])
    evicted = told(capsys, "evict", url, f"--bytes={FILE_BYTES * blocks_asked}", status=int(blocks_asked > 10))
    assert evicted["blocks"] == min(blocks_asked, 10)
    for sequence in (stem, branch[2:]):
        found = await held(url, sequence)
        assert found == sorted(found, key=["ok", "missing"].index)


async def test_more_than_there_is_evicts_all_and_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await fill(url, chain(3))
    assert command.main(["evict", url, "--bytes=1TB"]) == 1
    said = f"3 blocks of {3 * FILE_BYTES} bytes evicted; 0 blocks of 0 bytes are left\n"
    assert capsys.readouterr().out == said


async def test_a_copy_has_every_whole_block_and_skips_what_is_there(
    url: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = chain(150)
    await fill(url, blocks)
    await fill(target, blocks[40:50])
    await damage(url, blocks[7], at=5000 - 900)
    done = told(capsys, "copy", url, target, status=1)
    assert (done["blocks"], done["skipped"]) == (139, 10)
    assert done["bytes"] == 139 * FILE_BYTES
    damaged = done["damaged"]
    assert isinstance(damaged, list)
    assert [one["key"] for one in damaged] == [blocks[7].key.hex()]
    assert await held(target, blocks) == ["missing" if i == 7 else "ok" for i in range(150)]
    again = told(capsys, "copy", url, target, status=1)
    assert (again["blocks"], again["skipped"]) == (0, 149)
    back = told(capsys, "copy", target, f"memory://{secrets.token_hex(4)}")
    assert (back["blocks"], back["damaged"]) == (149, [])


async def test_a_copy_mends_a_header_that_is_damaged_in_the_target(
    url: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = chain(4)
    await fill(url, blocks)
    await fill(target, blocks)
    await damage(target, blocks[2], at=60)
    assert told(capsys, "copy", url, target)["blocks"] == 1
    assert await held(target, blocks) == ["ok"] * 4


async def test_a_target_that_takes_no_more_ends_the_copy(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(url, chain(100))
    assert command.main(["copy", url, f"faulty+file://{tmp_path}/target?error=0.05&seed=1"]) == 2
    assert "dualpath-store: the target takes no more: [Errno 5]" in capsys.readouterr().err
    assert list((tmp_path / "target" / "tmp").iterdir()) == []


WRONG = [
    (["stat", "file:///nowhere/at/all"], "file:///nowhere/at/all is no block store: no store was ever opened there"),
    (["verify", "s4://bucket"], "store URL 's4://bucket': expected file:///absolute/folder"),
    (["evict", "memory://a"], "the following arguments are required: --bytes; see --help"),
    (["evict", "memory://a", "--bytes=-1"], "argument --bytes: '-1': expected bytes, such as 5000000, 500MB or 20GB"),
    (["ls", "memory://a", "--limit=few"], "argument --limit: 'few': expected a number, 0 or more"),
    (["copy", "memory://a"], "the following arguments are required: target"),
    (["copy", "file:///nowhere", "memory://a"], "file:///nowhere is no block store"),
    (["prune", "memory://a"], "argument stat|ls|verify|evict|copy: invalid choice: 'prune'"),
    ([], "the following arguments are required: stat|ls|verify|evict|copy"),
]


@pytest.mark.parametrize(("arguments", "complaint"), WRONG, ids=lambda value: " ".join(value)[:30])
def test_what_is_wrong_is_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = command.main(arguments)
    except SystemExit as ended:
        status = int(str(ended.code))
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert said.err.startswith("dualpath-store")
    assert complaint in said.err


def test_a_folder_that_is_no_store_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for subcommand in (["stat"], ["ls"], ["verify", "--delete"], ["evict", "--bytes=1"]):
        assert command.main([*subcommand, f"file://{tmp_path}"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("is no block store") == 4


def test_the_readme_shows_what_the_command_takes(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"^```sh\n(.*?)^```$", (REPOSITORY / "storage/README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    opened(f"file://{tmp_path}/srv/kv")
    for line in block.splitlines():
        name, *arguments = shlex.split(line.replace("file:///", f"file://{tmp_path}/"))
        assert name == command.NAME
        assert command.main(arguments) in (0, 1)


def test_the_command_is_installed_under_its_name() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["scripts"][command.NAME] == f"{command.run.__module__}:{command.run.__name__}"
