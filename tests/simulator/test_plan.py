"""`dualpath-plan`: the paper's table by hand, what it leaves out, the simulator's own cards, the command."""

import json

import pytest

from dualpath_configs import SchedulingSpec, load_simulated
from dualpath_scheduler.simulator.plan.best import least
from dualpath_scheduler.simulator.plan.bottlenecks import (
    Bounds,
    Load,
    Rates,
    Resource,
    admissible,
    peak_rates,
    resources,
)
from dualpath_scheduler.simulator.plan.command import main
from dualpath_scheduler.simulator.plan.mix import Mix, mix_of
from dualpath_scheduler.simulator.simulation import Simulation
from tests.simulator.small import small_spec, workload

SHORT = ["--trace", "paper-32k", "--agents", "12", "--max_turns", "4"]
NO_OTHERS = Mix(hit=1000, miss=0, generated=0, stored=0)


def rows_of(spec, mix, rates) -> dict[str, Resource]:
    return {row.name: row for row in resources(spec, mix, rates)}


def test_the_papers_table():
    spec = load_simulated("660b_2p4d")
    rows = rows_of(spec, NO_OTHERS, peak_rates(spec))
    # g = 8, s = 1, M = 10 Bs: the conditions as the paper writes them.
    assert rows["PE CNIC read"].hits == Load(2 / 8 * 50e9)
    bounds = {name: row.bounds(row.hits) for name, row in rows.items() if not row.computes}
    assert bounds == {
        "PE CNIC read": Bounds(),
        "PE CNIC write": Bounds(least=pytest.approx(1 / 7)),
        "DE CNIC read": Bounds(most=pytest.approx(6)),
        "DE CNIC write": Bounds(most=pytest.approx(3.5)),
        "PE memory": Bounds(),
        "DE memory": Bounds(most=pytest.approx((500 / 50 - 3) / 2)),
        "DE SNIC write": Bounds(),
    }
    both = admissible(list(rows.values()), others=False)
    assert (both.least, both.most) == (pytest.approx(1 / 7), pytest.approx(7 / 2))


def test_loads_of_two_prefill_and_one_decode_node_by_hand():
    # Two engines a node; storage 10, so three nodes read 30 a second: 15 for each prefill node, 7.5 for each engine.
    spec = small_spec(engines_per_node=2)
    rows = rows_of(spec, Mix(hit=100, miss=20, generated=10, stored=30), Rates(10.0, 50.0, 100.0))
    found = {name: (row.at(row.hits, 2.0), row.at(row.others, 2.0)) for name, row in rows.items() if not row.computes}
    assert found == {
        "PE CNIC read": (10.0, pytest.approx(0.2 * 7.5)),  # its own 5 in and out again; miss tokens out
        "PE CNIC write": (pytest.approx(7.5), 0.0),
        # 5 that it read, and 15 into its device; miss tokens into it, generated ones out of it
        "DE CNIC read": (pytest.approx(5 + 15), pytest.approx(0.3 * 15)),
        "DE CNIC write": (pytest.approx(10 + 15), pytest.approx((0.3 + 0.2) * 15)),
        "PE memory": (20.0, 0.0),
        "DE memory": (pytest.approx(10 + 10 + 20 + 30), pytest.approx((0.2 + 0.2 + 0.1 + 0.3) * 30)),
        "DE SNIC write": (0.0, pytest.approx(0.3 * 30)),
    }


def test_computing_by_hand():
    # A prefilled token takes 2 ms and nothing else does; a storage card reads 10 requests' 100 hit tokens a second.
    spec = small_spec()
    rows = rows_of(spec, Mix(hit=100, miss=20, generated=11, stored=30), Rates(1e6, 1e9, 1e9))
    assert rows["PE computing"].others == Load(pytest.approx(10 * 20 * 0.002), pytest.approx(10 * 20 * 0.002))
    # 8,960 tokens fit: 68 requests of 131 step together; 68 tokens' operations take longer than reading the KV.
    step_s = max(68 * 0.002, 0.010 + 68 * (100 + 20 + 5.5) * 1e-5)
    assert rows["DE computing"].others.slope == pytest.approx(10 * 11 * step_s / 68)


def test_the_simulator_moves_what_the_table_says():
    sessions = [[(640, 20)] + [(70, 20)] * 12 for _ in range(8)]
    work = workload(*sessions, pause_s=1.0)  # every whole block is stored by the next turn, as the table has it
    spec = small_spec(engines_per_node=2, scheduling=SchedulingSpec(read_plan="alternate"))
    run = Simulation(spec, work)
    run.run()
    rows = rows_of(spec, mix_of(work, spec.block_tokens), peak_rates(spec))
    read = (run.prefill[0].snic.total_bytes + run.decode[0].snic.total_bytes) / 2
    nodes = {"PE": run.prefill[0], "DE": run.decode[0]}
    for name in ("PE CNIC read", "PE CNIC write", "DE CNIC read", "DE CNIC write"):
        where, _, direction = name.split()
        cards = getattr(nodes[where], f"cnic_{direction}")
        moved = sum(card.total_bytes for card in cards) / len(cards)
        expected = rows[name].at(rows[name].hits + rows[name].others, 1.0) / spec.hardware.snic_bytes_per_s
        assert moved / read == pytest.approx(expected, rel=0.05), name
    stored = rows["DE SNIC write"].at(rows["DE SNIC write"].others, 1.0) / spec.hardware.snic_bytes_per_s
    assert run.decode[0].snic_write.total_bytes / read == pytest.approx(stored, rel=0.05)


def test_a_limit_below_what_is_always_there_admits_nothing():
    row = Resource("card", "decode", 1.0, Load(2.0, 1.0))
    assert not row.bounds(row.hits).any
    assert not admissible([row], others=False).any


@pytest.mark.parametrize(("best", "most"), [(1, 1), (1, 2), (2, 2), (17, 143), (1, 143), (143, 143), (90, 100)])
def test_the_least_is_found_and_no_number_is_asked_for_twice(best, most):
    asked = []

    def value(number: int) -> float:
        asked.append(number)
        return abs(number - best)

    assert least(value, most) == best
    assert len(asked) == len(set(asked))
    assert set(asked) <= set(range(1, most + 1))
    assert len(asked) <= 22


def test_the_command_prints_table_ranges_and_splits(capsys):
    assert main([*SHORT, "--config", "27b_1p1d", "--nodes", "3"]) == 0
    text = capsys.readouterr().out
    assert "hits alone, peak rates (paper): 0.143 - 3.500" in text
    assert text.count("<- best") == 1
    assert "1P2D" in text
    assert "2P1D" in text


def test_the_command_prints_json(capsys):
    assert main([*SHORT, "--nodes", "2", "--arrivals_per_s", "1", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["best"] == [1, 1]
    (split,) = plan["splits"]
    assert split["speedup_over_basic"] == split["basic"]["ttft_mean_s"] / split["dualpath"]["ttft_mean_s"]
    assert plan["admissible"]["paper"] == pytest.approx([1 / 7, 3.5])
    assert plan["resources"][0]["admissible_hits"] == [0.0, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "1"], "--nodes 1: expected at least 2"),
        (["--max_turns", "1"], "no token is hit: expected sessions of several turns"),
        (["--set", "prefill_nodes=0"], "prefill_nodes = 0"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, said):
    assert main([*SHORT, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
