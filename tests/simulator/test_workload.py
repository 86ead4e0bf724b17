"""Workloads: the arrays say what the trace says, agents are drawn again with a round of their own."""

import numpy as np
import pytest

from dualpath_scheduler.simulator.workload import make_workload
from dualpath_scheduler.workload import load_trace

TRACE = load_trace("paper-32k", vocab_size=1000, max_sessions=10, max_turns=6)


def test_arrays_are_the_trace():
    work = make_workload(TRACE)
    assert work.sessions == 10
    lengths = [length for session in TRACE.sessions for length in session.prompt_lengths()]
    assert work.prompt_tokens().tolist() == lengths
    assert work.generate_tokens.tolist() == [len(turn.generate) for s in TRACE.sessions for turn in s.turns]
    assert work.arrival_s.tolist() == [0.0] * 10


def test_hits_are_whole_blocks_of_the_turn_before():
    work = make_workload(TRACE)
    prompts, hits = work.prompt_tokens(), work.hit_tokens(64)
    before = prompts - work.append_tokens
    assert (hits == before // 64 * 64).all()
    assert (hits[work.first[:-1]] == 0).all()


def test_agents_beyond_the_trace_get_a_round_in_front():
    work = make_workload(TRACE, agents=25, seed=3)
    turns = np.diff(work.first)
    own = [len(session.turns) for session in TRACE.sessions]
    assert turns[:10].tolist() == own
    assert sorted(turns[10:20].tolist()) == sorted(count + 1 for count in own)
    fronts = {(int(work.append_tokens[at]), int(work.generate_tokens[at])) for at in work.first[10:-1]}
    assert len(fronts) == 1


def test_fewer_agents_are_the_first_ones():
    assert np.diff(make_workload(TRACE, agents=3).first).tolist() == [len(s.turns) for s in TRACE.sessions[:3]]


def test_arrivals_are_poisson():
    work = make_workload(TRACE, agents=2000, arrivals_per_s=4.0)
    gaps = np.diff(work.arrival_s)
    assert gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert gaps.std() == pytest.approx(0.25, rel=0.1)
