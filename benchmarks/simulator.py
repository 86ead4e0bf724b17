"""What the simulator costs by size: the paper's 660B cluster and its multiples, up to 48P96D, on its 48K trace.

    python benchmarks/simulator.py [--multiples=1,4,12,24] [--mode=dualpath] [--max_turns=0]

Multiple m is 2m prefill and 4m decode nodes with 2,048 m agents; 24 is the paper's largest cluster with 49,152. One run
each, on one core. CPU seconds are the process's, since on a shared machine wall time says little; memory is the most
that the process has had until then, so multiples are best given in ascending order.
"""

import resource
import time

from absl import app, flags

from dualpath_configs import SIMULATED_MODES, load_simulated
from dualpath_scheduler.simulator.paper_points import PRESETS
from dualpath_scheduler.simulator.simulation import Simulation
from dualpath_scheduler.simulator.workload import make_workload
from dualpath_scheduler.workload import load_trace

MULTIPLES = flags.DEFINE_list("multiples", ["1", "4"], "How many times 2P4D with 2,048 agents.")
MODE = flags.DEFINE_enum("mode", "dualpath", list(SIMULATED_MODES), "The mode that is simulated.")
MAX_TURNS = flags.DEFINE_integer("max_turns", 0, "Sessions end after so many turns; 0: never.", lower_bound=0)

AGENTS = 2048
_ANY_VOCAB = 1000


def measure(multiple: int) -> str:
    """One row of the table: simulates the cluster, and raises where anything was lost on the way."""
    spec = load_simulated(PRESETS["ds660b"], {"mode": MODE.value})
    spec = spec.model_copy(
        update={"prefill_nodes": spec.prefill_nodes * multiple, "decode_nodes": spec.decode_nodes * multiple}
    )
    began = time.process_time()
    trace = load_trace("paper-48k", vocab_size=_ANY_VOCAB, max_turns=MAX_TURNS.value or None)
    run = Simulation(spec, make_workload(trace, agents=AGENTS * multiple))
    run.run()
    cpu_s, requests = time.process_time() - began, run.workload.requests
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    cluster = f"{spec.prefill_nodes}P{spec.decode_nodes}D"
    return (
        f"{cluster:>8}  {AGENTS * multiple:>7,}  {requests:>10,}  {run.completion_s:>14,.0f}  {cpu_s:>7.1f}  "
        f"{cpu_s / requests * 1e6:>14.0f}  {gigabytes:>10.2f}"
    )


def main(_: list[str]) -> None:
    print(f"{'cluster':>8}  {'agents':>7}  {'requests':>10}  {'completion (s)':>14}  {'CPU (s)':>7}  ", end="")
    print(f"{'us per request':>14}  {'GB at most':>10}")
    for multiple in MULTIPLES.value:
        print(measure(int(multiple)), flush=True)


if __name__ == "__main__":
    app.run(main)
