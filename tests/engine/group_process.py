"""One process of a group on the Flax engine: `group_process.py INDEX PROCESSES ENGINES PORT FOLDER`.

The leader writes what came of `generate` into the folder, and then goes on generating until it is ended.
"""

import asyncio
import functools
import pickle
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / part) for part in ("", "storage", "scheduler", "configs")]

from dualpath_configs import ClusterSpec, SchedulingSpec  # noqa: E402
from dualpath_jax.engine.flax_engine import FlaxEngineGroup  # noqa: E402
from dualpath_jax.launch.distributed import join_group  # noqa: E402
from dualpath_jax.launch.group import Leader, follow, meet  # noqa: E402
from dualpath_jax.launch.group_flags import Coordinates  # noqa: E402
from dualpath_jax.launch.platform import configure_jax  # noqa: E402
from tests.engine.flax_testbed import cluster_spec  # noqa: E402
from tests.engine.group_testbed import GROUPS, generate  # noqa: E402


def build(spec: ClusterSpec, process: int) -> FlaxEngineGroup:
    return FlaxEngineGroup(spec)


def lead(met: Leader, folder: Path) -> None:
    engines = met.engines(functools.partial(build, met.spec))
    engines.warm_up_prefill(GROUPS)
    engines.warm_up_decode()
    result = folder / "generated.tmp"
    result.write_bytes(pickle.dumps(generate(engines)))
    result.rename(folder / "generated")
    while True:
        generate(engines)


def main(index: int, processes: int, engines: int, port: int, folder: Path) -> None:
    scheduling = SchedulingSpec(process_silence_s=6.0)
    spec = cluster_spec(engines=engines, processes_per_node=processes, scheduling=scheduling)
    place = Coordinates(f"127.0.0.1:{port}", processes, index)
    join = functools.partial(join_group, place, timeout_s=60)
    configure_jax("cpu", devices=engines // processes, join=join)
    met = meet(spec, "127.0.0.1")
    if isinstance(met, Leader):
        lead(met, folder)
    else:
        asyncio.run(follow(met, functools.partial(build, spec)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), Path(sys.argv[5]))
