"""The shape of a cluster: nodes, engines, emulated network cards, storage, scheduling."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from dualpath_configs.base import Spec
from dualpath_configs.lanes import LanesSpec
from dualpath_configs.model import ModelSpec

_STORE_URLS = ("file:///", "s3://", "gcs://", "tensorstore+file:///", "tensorstore+memory://", "mooncake://")
"""How the URL of a store begins; what follows must not be empty."""

_Check = tuple[bool, str, object, str]
"""Whether it holds, the key that it is about, its value, and what was expected."""


class NetworkSpec(Spec):
    """Network cards, emulated unless real ones are there. A rate that is absent is no limit.

    The storage card is full duplex: reads and writes are limited separately, each at `snic_bytes_per_s` of a node.
    The compute card belongs to one engine and carries everything that engine sends or receives (paper, traffic).
    """

    snic_bytes_per_s: PositiveFloat | None = None
    cnic_bytes_per_s: PositiveFloat | None = None
    burst_bytes: PositiveInt = 262_144
    transport: Literal["auto", "grpc", "nixl"] = Field(
        default="auto",
        description="What carries KV between nodes; auto: NIXL (UCX) where it is installed and works on both sides, "
        "else gRPC.",
    )
    ucx: dict[str, str] = Field(
        default={},
        description='Settings of UCX for NIXL without their prefix, such as { NET_DEVICES = "mlx5_0:1" }.',
    )
    emulated: bool = Field(
        default=True, description="Whether nodes hold traffic back to the rates; false: the network itself has them."
    )
    lanes: LanesSpec = LanesSpec()


class EngineSpec(Spec):
    """What one engine holds and how a step is cut."""

    kind: Literal["flax", "fake"] = "flax"
    prefill_token_buckets: tuple[PositiveInt, ...] = Field(
        default=(128, 512), min_length=1, description="Compiled widths of a prefill step, in new tokens of one engine."
    )
    prefix_token_buckets: tuple[PositiveInt, ...] = Field(
        default=(2048, 8192),
        min_length=1,
        description="Compiled capacities for a step's stored prefix, in tokens of one engine.",
    )
    shard_tokens: PositiveInt = Field(default=256, description="Tokens of context that attention visits at a time.")
    decode_slots: PositiveInt = Field(default=8, description="Requests that one engine decodes at a time.")
    decode_pages: PositiveInt = Field(default=1024, description="Pages (blocks) of KV in one engine's device memory.")
    fake_seconds_per_token: NonNegativeFloat = 0.0

    @field_validator("prefill_token_buckets", "prefix_token_buckets")
    @classmethod
    def _increasing(cls, buckets: tuple[int, ...]) -> tuple[int, ...]:
        if list(buckets) != sorted(set(buckets)):
            raise ValueError("expected increasing values")
        return buckets


class StorageSpec(Spec):
    """Where KV blocks are kept, and how long an operation may take."""

    url: str = Field(
        default="",
        description="`file:///folder`, `s3://bucket/prefix?endpoint=http://host:port&region=NAME`, "
        "`gcs://bucket/prefix`, `mooncake://host:port/prefix?segment_bytes=BYTES&admin=host:port` or `memory://`; "
        "through TensorStore as the clouds also `tensorstore+file:///folder` and "
        "`tensorstore+memory://name`; for tests with `faulty+` before it and rates of faults after it; empty: a "
        "temporary folder of the cluster.",
    )
    read_deadline_s: PositiveFloat = 10.0
    write_deadline_s: PositiveFloat = 10.0
    dram_bytes: NonNegativeInt = Field(
        default=0, description="Memory of each node for blocks that it wrote or read lately; 0: none."
    )
    capacity_bytes: PositiveInt | None = Field(
        default=None,
        description="Bytes of blocks that the store may hold; absent: no limit.",
    )
    time_to_live_s: PositiveFloat | None = Field(
        default=None, description="Blocks that nothing used for so long are evicted; absent: they stay."
    )

    @property
    def in_process_memory(self) -> bool:
        """Whether each process that opens `url` has a store of its own."""
        return self.url.removeprefix("faulty+").startswith(("memory:", "tensorstore+memory:"))

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        plain = url.removeprefix("faulty+")
        known = plain.startswith("memory://") or (plain.startswith(_STORE_URLS) and plain not in _STORE_URLS)
        if url and not known:
            raise ValueError(
                "expected file:///folder, s3://bucket/prefix, gcs://bucket/prefix, mooncake://host:port/prefix, "
                "memory:// or an empty string"
            )
        return url


class SchedulingSpec(Spec):
    """The constants of the paper's scheduling, and the bounds of what a node waits for."""

    alpha_s: PositiveFloat = Field(default=3.0, description="α: reads that may wait on a node, in seconds of its SNIC.")
    beta_s: PositiveFloat = Field(default=5.0, description="β: work that may wait on an engine, in seconds of compute.")
    beta_tokens: PositiveInt | None = Field(default=None, description="β in tokens; absent: from the fitted speed.")
    compute_quota_s: PositiveFloat = Field(default=0.3, description="Predicted attention time of one prefill batch.")
    layers_per_group: PositiveInt = Field(default=2, description="Layers that one step of layerwise prefill runs.")
    read_order: Literal["blocks", "layers"] = Field(
        default="blocks",
        description="Whether stored blocks are read whole, one after the other, or the first layer group of all of a "
        "request's blocks, then the second, so that layerwise prefill begins before the last has come.",
    )
    lease_s: PositiveFloat = Field(default=4.0, description="Silence after which a node counts as dead.")
    process_silence_s: PositiveFloat = Field(
        default=10.0, description="Silence after which a process of a node counts as dead, and the node with it."
    )
    process_call_s: PositiveFloat = Field(
        default=60.0, description="Time that a process of a node has for one call to its engines, once warmed up."
    )
    transfer_deadline_s: PositiveFloat = 20.0
    reservation_deadline_s: PositiveFloat = 60.0
    request_deadline_s: PositiveFloat = 600.0
    max_attempts: PositiveInt = 3
    read_plan: Literal["paper", "shorter-queue", "split", "prefill-only", "alternate"] = Field(
        default="paper",
        description="Which side reads a request's stored KV; paper: what the mode says. Without `mode.dual_path` the "
        "prefill side reads all of it, whatever stands here.",
    )
    load_or_recompute: bool = Field(
        default=False,
        description="Whether stored KV is computed anew where that is predicted to be faster than reading.",
    )
    decode_affinity: NonNegativeFloat = Field(
        default=0.0,
        description="How many tokens of a longer decode queue a token of KV that the group holds in memory is worth; "
        "0: the queues alone count, as in the paper.",
    )


class ModeSpec(Spec):
    """The three switches of the paper's ablation, and the ideal network of its oracle."""

    layerwise: bool = True
    dual_path: bool = True
    scheduling: bool = True
    free_transfers: bool = False


MODES: dict[str, ModeSpec] = {
    "basic": ModeSpec(layerwise=False, dual_path=False, scheduling=False),
    "dualpath": ModeSpec(),
    "oracle": ModeSpec(free_transfers=True),
}


def named_mode(mode: object, modes: Mapping[str, ModeSpec]) -> object:
    """What a mode's name stands for; anything else as it is. Raises ValueError for a name that is none."""
    if not isinstance(mode, str):
        return mode
    if mode not in modes:
        raise ValueError(f"expected one of {', '.join(modes)}, or a table of switches")
    return modes[mode]


class ClusterSpec(Spec):
    """One cluster, whole."""

    model: ModelSpec
    checkpoint: str = Field(default="", description="Hugging Face folder; empty: weights from `weights_seed`.")
    weights_seed: int = 0
    weights_version: int = Field(default=0, ge=0)
    block_tokens: PositiveInt = 64
    prefill_nodes: PositiveInt
    decode_nodes: PositiveInt
    engines_per_node: PositiveInt = 2
    processes_per_node: PositiveInt = Field(default=1, description="Processes that share a node's engines evenly.")
    host_buffer_blocks: PositiveInt = Field(default=2048, description="Full-Block slots of a node's host buffer.")
    max_context_tokens: PositiveInt = Field(default=8192, description="Longest prompt plus generation of a request.")
    engine: EngineSpec = EngineSpec()
    network: NetworkSpec = NetworkSpec()
    storage: StorageSpec = StorageSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    mode: ModeSpec = ModeSpec()

    @field_validator("mode", mode="before")
    @classmethod
    def _named_mode(cls, mode: object) -> object:
        return named_mode(mode, MODES)

    @property
    def max_context_blocks(self) -> int:
        """Blocks of the longest request, the last one perhaps partial."""
        return -(-self.max_context_tokens // self.block_tokens)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for holds, key, value, expected in (*self._size_checks(), *self._bucket_checks()):
            if not holds:
                raise ValueError(f"{key} = {value!r}: expected {expected}")
        return self

    def _size_checks(self) -> list[_Check]:
        model, needed = (
            self.model,
            f"at least {self.max_context_blocks}, the blocks of one request of max_context_tokens",
        )
        return [
            (
                self.max_context_tokens <= model.max_position_embeddings,
                "max_context_tokens",
                self.max_context_tokens,
                f"at most model.max_position_embeddings ({model.max_position_embeddings})",
            ),
            (
                self.host_buffer_blocks >= self.max_context_blocks,
                "host_buffer_blocks",
                self.host_buffer_blocks,
                needed,
            ),
            (
                self.engine.decode_pages >= self.max_context_blocks,
                "engine.decode_pages",
                self.engine.decode_pages,
                needed,
            ),
            (
                model.n_routed_experts % self.engines_per_node == 0,
                "engines_per_node",
                self.engines_per_node,
                f"a divisor of model.n_routed_experts ({model.n_routed_experts})",
            ),
            (
                self.engines_per_node % self.processes_per_node == 0,
                "processes_per_node",
                self.processes_per_node,
                f"a divisor of engines_per_node ({self.engines_per_node})",
            ),
        ]

    def _bucket_checks(self) -> list[_Check]:
        shard, prefill, prefix = (
            self.engine.shard_tokens,
            self.engine.prefill_token_buckets,
            self.engine.prefix_token_buckets,
        )
        block = f"block_tokens ({self.block_tokens})"
        return [
            (shard % self.block_tokens == 0, "engine.shard_tokens", shard, f"a multiple of {block}"),
            (
                all(bucket % self.block_tokens == 0 for bucket in prefill),
                "engine.prefill_token_buckets",
                prefill,
                f"multiples of {block}",
            ),
            (
                all(bucket % shard == 0 for bucket in prefix),
                "engine.prefix_token_buckets",
                prefix,
                f"multiples of engine.shard_tokens ({shard})",
            ),
            (
                max(prefix) >= self.max_context_tokens,
                "engine.prefix_token_buckets",
                prefix,
                f"a largest one of at least max_context_tokens ({self.max_context_tokens})",
            ),
        ]
