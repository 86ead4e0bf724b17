"""A leader and its followers on fake engines: the group answers as one engine group would, or says what is wrong."""

import numpy as np
import pytest

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import DecodeRequest, EngineGroup, PrefillChunk, Slot
from dualpath_jax.engine.fake import FakeEngineGroup
from dualpath_jax.engine.group.follower import Follower
from dualpath_jax.engine.group.leader import GroupDiverged, LeaderEngineGroup
from dualpath_jax.engine.group.link import GroupLost, LinkSettings
from dualpath_jax.engine.group.service import LeaderService
from tests.cluster.harness import small_spec
from tests.engine.group_testbed import fake_group, generate, part


def spec_of(folder, *, engines: int = 2, processes: int = 2, **more: object) -> ClusterSpec:
    return small_spec(folder, engines_per_node=engines, processes_per_node=processes, **more)


@pytest.mark.parametrize(("engines", "processes"), [(2, 2), (4, 2), (8, 4)])
def test_a_group_of_processes_answers_as_one_of_one_process(tmp_path, engines, processes):
    spec = spec_of(tmp_path, engines=engines, processes=processes)
    with fake_group(spec) as group:
        assert generate(group.engines) == generate(FakeEngineGroup(spec))
        assert generate(group.engines).choices == generate(FakeEngineGroup(spec)).choices  # every place is free again
    assert group.lost == []


def test_stages_and_results_larger_than_a_piece_arrive_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("dualpath_jax.engine.group.messages.PIECE_BYTES", 100)
    spec = spec_of(tmp_path)
    with fake_group(spec) as group:
        assert generate(group.engines) == generate(FakeEngineGroup(spec))


def request(engine: EngineGroup, on: int, tokens: int) -> tuple[DecodeRequest, list[np.ndarray]]:
    blocks = engine.layout.blocks_of(tokens)
    return DecodeRequest("r", on, tokens, 1, 4), [np.zeros(engine.layout.block_bytes, np.uint8)] * blocks


@pytest.mark.parametrize("on", [0, 1])
def test_what_all_processes_refuse_is_refused_and_the_group_goes_on(tmp_path, on):
    spec = spec_of(tmp_path, engine__decode_slots=1)
    with fake_group(spec) as group:
        slot = group.engines.insert(*request(group.engines, on, 20))
        assert not group.engines.can_insert(on, 20)
        with pytest.raises(ValueError, match="ask can_insert first"):
            group.engines.insert(*request(group.engines, on, 20))
        with pytest.raises(ValueError, match="only 20 tokens have been fed"):
            group.engines.export_block(slot, 3)
        with pytest.raises(ValueError, match="no pass is running"):
            group.engines.finish_prefill()
        group.engines.release(slot)
        assert group.engines.insert(*request(group.engines, on, 20)) == Slot(on, 0, 2)
    assert group.lost == []


def test_processes_that_do_not_do_the_same_are_found_out(tmp_path):
    spec = spec_of(tmp_path)
    other = FakeEngineGroup(spec_of(tmp_path, engine__decode_slots=1), local_engines=range(1, 2))
    with fake_group(spec, other) as group:
        group.engines.insert(*request(group.engines, 0, 20))
        with pytest.raises(
            GroupDiverged, match=r"insert: process 1 says '.*ask can_insert first' and this process 'yes'"
        ):
            group.engines.insert(*request(group.engines, 0, 20))
        with pytest.raises(GroupDiverged, match="an earlier call failed"):
            group.engines.step()
    assert group.lost == ["lost the leader (process 0): its stream has ended"]  # the follower is to end as well


class Stubborn(FakeEngineGroup):
    """Breaks in a step, as a collective whose peer is gone."""

    def step(self) -> list:
        raise RuntimeError("broken")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_follower_that_ends_is_lost_and_so_is_the_group(tmp_path):
    spec = spec_of(tmp_path)
    with fake_group(spec, Stubborn(spec, local_engines=range(1, 2)), call_deadline_s=0.5) as group:
        with pytest.raises(GroupLost, match="the stream to process 1 has ended"):
            group.engines.step()
        assert group.lost == ["lost process 1: an answer is overdue"]


def test_a_follower_with_another_config_is_refused_on_both_sides(tmp_path):
    lost: list[str] = []
    one, other = (LinkSettings(digest, silence_s=5.0, on_lost=lost.append) for digest in (b"one", b"other"))
    service = LeaderService("127.0.0.1", one, processes=2)
    follower = Follower(service.addresses, other, process=1)
    try:
        with pytest.raises(GroupLost, match="process 1 has another config than process 0: expected the same"):
            service.followers(2, deadline_s=10)
        with pytest.raises(GroupLost):
            follower.follow(part(spec_of(tmp_path), 1))
        assert lost == [
            "lost the leader (process 0): FAILED_PRECONDITION: process 1 has another config than process 0: "
            "expected the same"
        ]
    finally:
        follower.close()
        service.close()


def test_a_follower_that_does_not_come_is_named():
    service = LeaderService("127.0.0.1", LinkSettings(b"", silence_s=5.0, on_lost=print), processes=3)
    try:
        with pytest.raises(GroupLost, match=r"processes \[1, 2\] of the group have not come within 0\.1 s"):
            service.followers(3, deadline_s=0.1)
    finally:
        service.close()


def test_engines_that_nobody_has_are_found_out(tmp_path):
    with pytest.raises(ValueError, match=r"the processes have engines \[0\]: expected each of 2 once"):
        LeaderEngineGroup(part(spec_of(tmp_path), 0), [], call_deadline_s=1.0)


def test_a_pass_needs_a_start(tmp_path):
    with fake_group(spec_of(tmp_path)) as group, pytest.raises(ValueError, match="call start_prefill first"):
        group.engines.run_layers(0, 1, group.engines.new_stage(1))
    with fake_group(spec_of(tmp_path)) as group:
        group.engines.start_prefill(group.engines.plan_prefill([PrefillChunk("r", 1, np.arange(5), 0)]))
        with pytest.raises(ValueError, match="expected to go on at layer 0"):
            group.engines.run_layers(1, 2, group.engines.new_stage(1))
        assert group.engines.run_layers(0, 3, group.engines.new_stage(3)).shape[:2] == (2, 3)
