"""The engine group that runs the Flax model: data-parallel attention, experts sharded over the engines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, final

import jax
import numpy as np
from jax.sharding import Mesh

from dualpath_configs.cluster import ClusterSpec
from dualpath_jax.engine.base import (
    DecodeRequest,
    EngineGroup,
    EngineLimits,
    PrefillChunk,
    PrefillPass,
    Slot,
    Stage,
    TokenChoice,
)
from dualpath_jax.engine.flax_decode import DecodeBatch
from dualpath_jax.engine.flax_packing import plan_pass
from dualpath_jax.engine.flax_prefill import LayerwisePrefill
from dualpath_jax.engine.flax_programs import ShardedModel
from dualpath_jax.models.decoder import Decoder
from dualpath_jax.models.kv import kv_layout, model_digest
from dualpath_jax.models.loading import load_hugging_face, weights_id
from dualpath_jax.models.parameters import ENGINE_AXIS
from dualpath_storage.keys import KVIdentity

Role = Literal["prefill", "decode", "both"]


@final
class FlaxEngineGroup(EngineGroup):
    """`spec.engines_per_node` engines on as many devices, over a mesh with the one axis `engine`.

    `role` is what the group may be asked for; the pages of decode are allocated only where they can be used. `devices`
    are the first ones of each process by default; where there are several processes, all of them make the same calls.
    `compilation_cache_dir` keeps compiled programs between processes.

    Raises ValueError where there are too few devices, and CheckpointError where `spec.checkpoint` does not fit.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        role: Role = "both",
        devices: Sequence[jax.Device] | None = None,
        compilation_cache_dir: str | Path | None = None,
    ) -> None:
        if compilation_cache_dir is not None:
            keep_compiled_programs(compilation_cache_dir)
        mesh = engine_mesh(spec.engines_per_node, devices)
        self.spec = spec
        self.role = role
        self.layout = kv_layout(spec.model, spec.block_tokens)
        self.identity = kv_identity(spec)
        self.engines = spec.engines_per_node
        self.vocab_size = spec.model.vocab_size
        self.limits = EngineLimits(
            prefill_tokens=max(spec.engine.prefill_token_buckets),
            prefix_tokens=max(spec.engine.prefix_token_buckets),
            decode_slots=spec.engine.decode_slots,
            decode_tokens=spec.engine.decode_pages * spec.block_tokens,
        )
        self.model: Decoder | None = load_model(spec, mesh)
        sharded = ShardedModel.of(self.model, mesh)
        self.local_engines = sharded.local
        self._prefill = None if role == "decode" else LayerwisePrefill(spec, self.layout, sharded)
        self._decode = None if role == "prefill" else DecodeBatch(spec, self.layout, sharded)

    def warm_up_prefill(self, layer_groups: Sequence[tuple[int, int]]) -> None:
        """A short pass through every program: each token bucket with each stage bucket, in these layer groups."""
        stage = self.new_stage(max(last - first for first, last in layer_groups))
        for tokens in self.spec.engine.prefill_token_buckets:
            chunk = PrefillChunk("warm-up", 0, np.zeros(tokens, np.int32), 0)
            for prefix in self.spec.engine.prefix_token_buckets:
                self.start_prefill(PrefillPass((chunk,), (0,), (0,), prefix // self.layout.block_tokens))
                for first, last in layer_groups:
                    self.run_layers(first, last, stage)
            self._prefiller.warm_up_choice()
        self._prefiller.drop()

    def warm_up_decode(self) -> None:
        self._decoder.warm_up()

    def plan_prefill(self, chunks: Sequence[PrefillChunk]) -> PrefillPass:
        return plan_pass(self.spec, chunks)

    def new_stage(self, layers: int) -> Stage:
        blocks = self.limits.prefix_tokens // self.layout.block_tokens
        return Stage(self.layout, engines=self.engines, layers=layers, blocks=blocks)

    def start_prefill(self, pass_: PrefillPass) -> None:
        self._prefiller.start(pass_)

    def run_layers(self, first: int, last: int, stage: Stage) -> np.ndarray:
        return self._prefiller.run_layers(first, last, stage)

    def finish_prefill(self) -> list[TokenChoice | None]:
        return self._prefiller.finish()

    def can_insert(self, engine: int, total_tokens: int) -> bool:
        return self._decoder.can_insert(engine, total_tokens)

    def insert(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> Slot:
        return self._decoder.insert(request, blocks)

    def step(self) -> list[tuple[Slot, TokenChoice]]:
        return self._decoder.step()

    def export_block(self, slot: Slot, block: int) -> np.ndarray:
        return self._decoder.export_block(slot, block)

    def release(self, slot: Slot) -> None:
        if self._decode is not None:
            self._decode.release(slot)

    def close(self) -> None:
        if self._decode is not None:
            self._decode.close()
        self._prefill = self._decode = self.model = None

    @property
    def _prefiller(self) -> LayerwisePrefill:
        if self._prefill is None:
            raise ValueError(
                f"this engine group has role {self.role!r} or is closed: expected an open one that prefills"
            )
        return self._prefill

    @property
    def _decoder(self) -> DecodeBatch:
        if self._decode is None:
            raise ValueError(
                f"this engine group has role {self.role!r} or is closed: expected an open one that decodes"
            )
        return self._decode


def engine_mesh(engines: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `engines` devices: the first ones, as many of each process."""
    found = jax.devices() if devices is None else list(devices)
    processes = sorted({device.process_index for device in found})
    share = engines // len(processes)
    chosen = [device for index in processes for device in [d for d in found if d.process_index == index][:share]]
    if len(chosen) < engines:
        raise ValueError(
            f"{len(found)} devices for {engines} engines: expected one each; on CPU start Python with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={share}"
        )
    return Mesh(np.array(chosen), (ENGINE_AXIS,))


def load_model(spec: ClusterSpec, mesh: Mesh) -> Decoder:
    """The weights that the spec names, on the mesh."""
    if spec.checkpoint:
        return load_hugging_face(spec.checkpoint, spec.model, mesh)
    return Decoder.initialize(spec.model, spec.weights_seed, mesh)


def kv_identity(spec: ClusterSpec) -> KVIdentity:
    """What the KV of this cluster is good for. Reads the checkpoint's files once, where there is one."""
    return KVIdentity(
        model_digest=model_digest(spec.model),
        weights_id=f"checkpoint:{weights_id(spec.checkpoint)}" if spec.checkpoint else f"seed:{spec.weights_seed}",
        weights_version=spec.weights_version,
        layout_digest=kv_layout(spec.model, spec.block_tokens).digest.hex(),
        block_tokens=spec.block_tokens,
    )


def keep_compiled_programs(directory: str | Path) -> None:
    """Keep what this process compiles in a folder, and take from there what another process has compiled."""
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
