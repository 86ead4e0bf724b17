"""The group as a whole: roles, identity, memory, warm-up, the compilation cache."""

import subprocess
import sys
from functools import cache

import jax
import numpy as np
import pytest

from dualpath_configs import EngineSpec
from dualpath_jax.engine.base import DecodeRequest, PrefillChunk, Sampling
from dualpath_jax.engine.flax_engine import FlaxEngineGroup, engine_mesh, kv_identity
from dualpath_jax.engine.flax_programs import layers_per_stack
from tests.engine.flax_testbed import ALL, cluster_spec, engine_group, insert, prompt, run_pass


def test_identity_names_what_the_kv_is_of() -> None:
    spec = cluster_spec()
    identity = kv_identity(spec)
    assert engine_group().identity == identity
    assert (identity.weights_id, identity.weights_version, identity.block_tokens) == ("uniform-1-seed-0", 0, 8)
    assert identity.layout_digest == engine_group().layout.digest.hex()
    for changed in ({"weights_seed": 1}, {"weights_version": 1}, {"kv_dtype": "bfloat16"}):
        assert kv_identity(cluster_spec(**changed)).root() != identity.root()


def test_too_few_devices() -> None:
    with pytest.raises(ValueError, match=r"2 devices for 4 engines: .*xla_force_host_platform_device_count=4"):
        engine_mesh(4, jax.devices()[:2])


def test_a_role_bounds_what_may_be_asked() -> None:
    prefill = FlaxEngineGroup(cluster_spec(), role="prefill")
    with pytest.raises(ValueError, match="role 'prefill' or is closed: expected an open one that decodes"):
        prefill.step()
    decode = FlaxEngineGroup(cluster_spec(), role="decode")
    with pytest.raises(ValueError, match="role 'decode' or is closed: expected an open one that prefills"):
        decode.start_prefill(decode.plan_prefill([]))
    for engine in (prefill, decode):
        engine.close()
        engine.close()
    with pytest.raises(ValueError, match="is closed"):
        decode.step()


@pytest.mark.parametrize(
    ("group", "spans"),
    [((0, 1), ((0, 1), (0, 0))), ((0, 3), ((0, 1), (0, 2))), ((1, 2), ((1, 0), (0, 1))), ((2, 3), ((1, 0), (1, 1)))],
)
def test_a_group_is_a_span_of_each_stack(group: tuple[int, int], spans: tuple[tuple[int, int], ...]) -> None:
    model = cluster_spec().model
    assert tuple(count for _, count in layers_per_stack(model, *group)) == tuple(count for _, count in spans)
    for (first, count), (wanted, _) in zip(layers_per_stack(model, *group), spans, strict=True):
        assert count == 0 or first == wanted


@pytest.mark.parametrize("dense", [0, 3])
def test_a_model_of_equal_layers_has_one_stack(dense: int) -> None:
    model = cluster_spec().model.model_copy(update={"first_k_dense_replace": dense})
    assert layers_per_stack(model, 1, 3) == ((1, 2),)


@pytest.mark.parametrize("group", [(-1, 1), (1, 1), (2, 4), (2, 1)])
def test_groups_that_do_not_exist(group: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"expected a range within \[0, 3\)"):
        layers_per_stack(cluster_spec().model, *group)


@cache
def large_stage_group() -> FlaxEngineGroup:
    buckets = EngineSpec(prefill_token_buckets=(64,), prefix_token_buckets=(8192,), shard_tokens=256, decode_pages=32)
    return FlaxEngineGroup(cluster_spec(layers=6, engine=buckets, block_tokens=64), role="prefill")


def device_bytes(layers: tuple[int, int]) -> int:
    """Scratch memory of a layer group's program with a stage that is large beside everything else."""
    engine = large_stage_group()
    prefiller, count = engine._prefill, layers[1] - layers[0]
    engine.start_prefill(engine.plan_prefill([PrefillChunk("r", 0, prompt(0, 3), 0)]))
    spans = layers_per_stack(engine.spec.model, *layers)
    program = prefiller.group_program(64, tuple(n for _, n in spans))
    inputs = prefiller._group_inputs(prefiller._running, spans, count, engine.new_stage(count))
    assert inputs.prefix.sharding.memory_kind == "pinned_host"
    compiled = program.jitted.lower(program.leaves, prefiller._running.x, inputs).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_device_memory_holds_one_layer_of_prefix() -> None:
    """The prefix stays in host memory but for the layer that runs: more layers, no more device memory."""
    layer_bytes = 8192 * large_stage_group().layout.token_layer_bytes
    two, five = device_bytes((1, 3)), device_bytes((1, 6))
    assert layer_bytes < two < 2 * layer_bytes
    assert five - two < layer_bytes / 10


def test_the_decode_step_updates_its_pages_in_place() -> None:
    decode = engine_group()._decoder
    decode.warm_up()
    place = [shard.data.unsafe_buffer_pointer() for shard in decode._cache.addressable_shards]
    decode.warm_up()
    assert [shard.data.unsafe_buffer_pointer() for shard in decode._cache.addressable_shards] == place


COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)


def test_nothing_compiles_after_warm_up() -> None:
    engine = FlaxEngineGroup(cluster_spec(engines=1))
    engine.warm_up_prefill(ALL)
    engine.warm_up_decode()
    before = len(COMPILED)
    done = run_pass(engine, [PrefillChunk("r", 0, prompt(0, 9), 0, Sampling())], [None])[0]
    slot = insert(engine, DecodeRequest("r", 0, 9, done.choice.token, 3), done.kv)
    engine.step()
    engine.export_block(slot, 0)
    assert 0 < before == len(COMPILED)
    engine.close()


CACHED = """
import warnings; warnings.simplefilter("error")
import jax
from tests.engine.flax_testbed import ALL, cluster_spec
from dualpath_jax.engine.flax_engine import FlaxEngineGroup
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
engine = FlaxEngineGroup(cluster_spec(engines=1), role="prefill", compilation_cache_dir={folder!r})
engine.warm_up_prefill(ALL)
print(hits.count("/jax/compilation_cache/cache_hits") > 0, hits.count("/jax/compilation_cache/cache_misses") > 0)
"""


def test_compiled_programs_are_kept_between_processes(tmp_path) -> None:
    outputs = []
    for _ in range(2):
        code = CACHED.format(folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        outputs.append(done.stdout.split())
    assert outputs[0][1] == "True"
    assert outputs[1][0] == "True"


def test_numpy_arrays_of_results_are_the_caller_s() -> None:
    """A result outlives the next pass, whose program may reuse device memory."""
    engine = engine_group(1)
    first = run_pass(engine, [PrefillChunk("r", 0, prompt(1, 20), 0, Sampling())], [None])[0].kv
    copy = np.array(first)
    run_pass(engine, [PrefillChunk("r", 0, prompt(2, 20), 0, Sampling())], [None])
    np.testing.assert_array_equal(first, copy)
