"""Times of the Flax engine of a preset on CPU devices: start-up, an agent's turn in prefill, and a decode step.

    python benchmarks/prefill.py [--config=local_1p1d] [--cached=4096] [--new=64] [--layers_per_group=2]

Prints one line a measurement: the fastest of several runs, and the rate of attention's own operations.
"""

import os
import time
from collections.abc import Callable

from absl import app, flags

ENGINES = 2
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={ENGINES}")

import numpy as np  # noqa: E402

from dualpath_configs import load_cluster  # noqa: E402
from dualpath_jax.engine.base import DecodeRequest, PrefillChunk, Sampling  # noqa: E402
from dualpath_jax.engine.flax_engine import FlaxEngineGroup  # noqa: E402
from dualpath_jax.engine.flax_layers import query_tile_tokens  # noqa: E402
from dualpath_jax.models.attention_cost import attention_flops  # noqa: E402

CONFIG = flags.DEFINE_string("config", "local_1p1d", "Preset or TOML file.")
CACHED = flags.DEFINE_integer("cached", 4096, "Tokens of stored prefix on each engine.")
NEW = flags.DEFINE_integer("new", 64, "New tokens on each engine.")
LAYERS_PER_GROUP = flags.DEFINE_integer("layers_per_group", 2, "Layers of a layer group.")
DECODE_TOKENS = flags.DEFINE_integer("decode_tokens", 3000, "Context of each decode slot.")
REPEATS = flags.DEFINE_integer("repeats", 5, "Runs of each measurement.")


def fastest_s(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest run, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def layer_groups(layers: int) -> list[tuple[int, int]]:
    """`[first, last)` of each group of `--layers_per_group`."""
    size = LAYERS_PER_GROUP.value
    return [(first, min(first + size, layers)) for first in range(0, layers, size)]


def prefill(engine: FlaxEngineGroup) -> None:
    """One pass: the same chunk on every engine."""
    model, groups = engine.spec.model, layer_groups(engine.layout.layers)
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, NEW.value)
    chunks = [PrefillChunk("benchmark", e, tokens, CACHED.value, Sampling()) for e in range(ENGINES)]
    pass_ = engine.plan_prefill(chunks)
    stage = engine.new_stage(LAYERS_PER_GROUP.value)

    def run() -> None:
        engine.start_prefill(pass_)
        for first, last in groups:
            engine.run_layers(first, last, stage)
        engine.finish_prefill()

    seconds = fastest_s(run, REPEATS.value)
    tile = query_tile_tokens(min(b for b in engine.spec.engine.prefill_token_buckets if b >= NEW.value))
    flops = ENGINES * attention_flops(model, CACHED.value, NEW.value, tile)
    print(
        f"prefill, {NEW.value} new after {CACHED.value} cached tokens on each of {ENGINES} engines: "
        f"{seconds * 1e3:.1f} ms; attention is {flops / 1e9:.2f} GFLOP, {flops / seconds / 1e9:.0f} GFLOP/s of the pass"
    )


def decode(engine: FlaxEngineGroup, slots: int) -> None:
    """Steps of `slots` requests, spread over the engines."""
    blocks = [np.zeros(engine.layout.block_bytes, np.uint8)] * engine.layout.blocks_of(DECODE_TOKENS.value)
    requests = [DecodeRequest(f"r{i}", i % ENGINES, DECODE_TOKENS.value, 1, 1000) for i in range(slots)]
    start = time.perf_counter()
    taken = [engine.insert(request, blocks) for request in requests]
    insert_s = (time.perf_counter() - start) / slots
    seconds = fastest_s(engine.step, REPEATS.value)
    print(
        f"decode, {slots} slots of {DECODE_TOKENS.value} tokens on {ENGINES} engines: {seconds * 1e3:.1f} ms a step, "
        f"insert {insert_s * 1e3:.1f} ms a request"
    )
    for slot in taken:
        engine.release(slot)


def main(_: list[str]) -> None:
    engine = FlaxEngineGroup(load_cluster(CONFIG.value, {"engines_per_node": ENGINES}))
    start = time.perf_counter()
    engine.warm_up_prefill(layer_groups(engine.layout.layers))
    print(f"warm-up of prefill: {time.perf_counter() - start:.1f} s")
    prefill(engine)
    start = time.perf_counter()
    engine.warm_up_decode()
    print(f"warm-up of decode: {time.perf_counter() - start:.1f} s")
    for slots in (2, 8, 16):
        decode(engine, slots)


if __name__ == "__main__":
    app.run(main)
