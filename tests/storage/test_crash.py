"""Writers that are killed at any moment lose nothing that they reported as stored, and leave nothing behind."""

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dualpath_storage import PosixStore
from dualpath_storage.open import open_medium
from dualpath_storage.tool.copy import copy
from tests.storage.blocks import LAYOUT, REPOSITORY, Block, chain, statuses

COPY = [sys.executable, "-c", "from dualpath_storage.tool.command import run; run()", "copy"]
OF_THE_SOURCE = 1000
COUNTS = {OF_THE_SOURCE: 5000}
Scenario = Callable[[Path, int, int], Awaitable["Campaign"]]


@dataclass
class Campaign:
    """What was killed so far, and what had been reported as stored by then, for one root."""

    root: Path
    kills: int = 0
    reported: set[str] = field(default_factory=set)
    seeds: set[int] = field(default_factory=set)
    left_to_copy: int = 0
    most_left_behind: int = 0
    """Most temporary files that lay there after a kill, the locks among them."""

    def writer(self, seed: int) -> "subprocess.Popen[str]":
        self.seeds.add(seed)
        arguments = [sys.executable, "-m", "tests.storage.writer", str(self.root), str(seed)]
        process = subprocess.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        return process

    def copy(self, source: Path) -> "subprocess.Popen[str]":
        """Returns as soon as it has opened the root."""
        self.seeds.add(OF_THE_SOURCE)
        urls, before = [f"file://{source}", f"file://{self.root}"], self.locks()
        process = subprocess.Popen([*COPY, *urls], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        while not self.locks() - before and process.poll() is None:
            time.sleep(0.002)
        return process

    def locks(self) -> set[str]:
        return {path.name for path in (self.root / "tmp").glob("*.lock")}

    def kill(self, processes: "list[subprocess.Popen[str]]", after_s: list[float]) -> None:
        """Kill each a while from now, wait for the last, and take down what they had reported."""
        timers = [threading.Timer(seconds, process.kill) for process, seconds in zip(processes, after_s, strict=True)]
        with ended(processes):
            for timer in timers:
                timer.start()
            for process in processes:
                assert process.stdout is not None
                self.reported |= {line for line in process.stdout.read().splitlines() if len(line) == 64}
                self.kills += process.wait(timeout=60) == -9
            for timer in timers:
                timer.join()
        with contextlib.suppress(FileNotFoundError):
            self.most_left_behind = max(self.most_left_behind, len(list((self.root / "tmp").iterdir())))

    async def check(self) -> int:
        """Open the root again: everything reported is there, and nothing but whole blocks; returns how many."""
        store = PosixStore(self.root, LAYOUT)
        assert [path.suffix for path in (self.root / "tmp").iterdir()] == [".lock"], "only the open store's own lock"
        blocks = [block for seed in sorted(self.seeds) for block in chain(COUNTS.get(seed, 2000), seed=seed)]
        found = dict(zip((block.key.hex() for block in blocks), await statuses(store, blocks), strict=True))
        whole = {key for key, status in found.items() if status == "ok"}
        assert set(found.values()) <= {"ok", "missing"}
        assert self.reported <= whole
        assert {block.key.hex() async for block in store.scan()} == whole
        assert {path.stem for path in self.root.glob("??/*")} == whole
        await store.close()
        return len(whole)


@contextlib.contextmanager
def ended(processes: "list[subprocess.Popen[str]]") -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield


def moment(dice: random.Random, most_s: float = 0.3) -> float:
    """Often early, while the store opens and its folders are made; sometimes late."""
    return most_s * dice.random() ** 3


async def kill_one_writer(root: Path, first_seed: int, rounds: int) -> Campaign:
    campaign = Campaign(root)
    for seed in range(first_seed, first_seed + rounds):
        campaign.kill([campaign.writer(seed)], [moment(random.Random(seed))])
        await campaign.check()
    return campaign


async def kill_several_writers(root: Path, first_seed: int, rounds: int) -> Campaign:
    """Three share the root, two of them with the same blocks; each dies at a moment of its own."""
    campaign = Campaign(root)
    for seed in range(first_seed, first_seed + rounds):
        dice = random.Random(seed)
        writers = [campaign.writer(seed), campaign.writer(seed), campaign.writer(seed + 500)]
        campaign.kill(writers, [moment(dice) for _ in writers])
        await campaign.check()
    return campaign


async def kill_a_copy_and_a_writer(root: Path, first_seed: int, rounds: int) -> Campaign:
    """A copy into the root and a writer beside it; in the end the copy is taken up and lacks nothing."""
    source = root.parent / f"{root.name}-source"
    store = PosixStore(source, LAYOUT)
    blocks = chain(COUNTS[OF_THE_SOURCE], seed=OF_THE_SOURCE)
    await store.put([block.write() for block in blocks], deadline_s=60)
    await store.close()
    campaign = Campaign(root)
    for seed in range(first_seed, first_seed + rounds):
        dice = random.Random(seed)
        processes = [campaign.copy(source), campaign.writer(seed)]
        campaign.kill(processes, [moment(dice), moment(dice)])
        await campaign.check()
        await remove_if_complete(root, blocks)
    with contextlib.ExitStack() as stack:
        urls = (store.url, f"file://{root}")
        done = copy(*(stack.enter_context(contextlib.closing(open_medium(url, must_exist=True))) for url in urls))
    assert done.damaged == []
    campaign.left_to_copy = done.blocks
    campaign.reported |= {block.key.hex() for block in blocks}
    await campaign.check()
    return campaign


async def remove_if_complete(root: Path, blocks: list[Block]) -> None:
    """So that the next copy has something to do."""
    store, keys = PosixStore(root, LAYOUT), [block.key for block in blocks]
    if all(await store.contains(keys)):
        await store.delete(keys)
    await store.close()


SCENARIOS = [kill_one_writer, kill_several_writers, kill_a_copy_and_a_writer]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_what_was_reported_outlives_a_kill(tmp_path: Path, scenario: Scenario) -> None:
    campaign = await scenario(tmp_path / "store", 0, 3)
    assert campaign.kills >= 3
    assert campaign.reported


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "rounds"), list(zip(SCENARIOS, (210, 70, 120), strict=True)))
async def test_what_was_reported_outlives_200_kills(tmp_path: Path, scenario: Scenario, rounds: int) -> None:
    """Ten rounds a root, so that a round's check reads all that its root has."""
    campaigns = [await scenario(tmp_path / f"{first}", first, 10) for first in range(0, rounds, 10)]
    kills = sum(campaign.kills for campaign in campaigns)
    reported = sum(len(campaign.reported) for campaign in campaigns)
    left = max(campaign.most_left_behind for campaign in campaigns)
    to_copy = sum(campaign.left_to_copy for campaign in campaigns)
    print(f"{scenario.__name__}: {kills} kills, {reported} blocks reported and whole, at most {left} files left behind")
    print(f"copies were killed with {to_copy} blocks left in {len(campaigns)} roots")
    assert (to_copy > 0) == (scenario is kill_a_copy_and_a_writer), "the copies were done before they were killed"
    assert kills >= 200
    assert left > 3, "no writer died while it wrote"
