"""The shape of a simulated cluster: what its nodes can do, what a model asks of them, and a few efficiencies."""

from typing import Self

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
from dualpath_configs.cluster import MODES, ModeSpec, SchedulingSpec, named_mode
from dualpath_configs.measured import MeasuredSpec

SIMULATED_MODES: dict[str, ModeSpec] = {
    "basic": MODES["basic"],
    "layerwise": ModeSpec(dual_path=False, scheduling=False),
    "layerwise+dual": ModeSpec(scheduling=False),
    "dualpath": MODES["dualpath"],
    "oracle": MODES["oracle"],
}
"""The modes of a cluster and, between `basic` and `dualpath`, the steps of the paper's ablation."""


class SimulatedModelSpec(Spec):
    """What one token asks of an engine, summed over all layers.

    A *pair* is one new token and one token that it attends to. With sparse attention a token attends to
    `sparse_tokens` of its context, which an indexer picks by looking at all of it.
    """

    layers: PositiveInt
    kv_bytes_per_token: PositiveInt = Field(description="KV of one token in all layers, as it is stored and moved.")
    projection_flops_per_token: PositiveFloat = Field(description="Attention's projections, on the token's engine.")
    ffn_flops_per_token: PositiveFloat = Field(description="Feed-forward networks: the experts that a token visits.")
    attention_flops_per_pair: PositiveFloat
    indexer_flops_per_pair: NonNegativeFloat = 0.0
    sparse_tokens: NonNegativeInt = Field(default=0, description="0: a token attends to its whole context.")
    indexer_bytes_per_token: NonNegativeInt = Field(default=0, description="Part of the KV that the indexer reads.")
    prefill_weights_bytes: PositiveInt = Field(description="Weights on one prefill engine.")
    decode_weights_bytes: PositiveInt = Field(description="Weights on one decode engine; each step reads them.")
    experts_are_shared: bool = Field(
        default=True,
        description="Experts lie on all engines of a group, which therefore step together; false: each steps alone.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.indexer_bytes_per_token >= self.kv_bytes_per_token:
            raise ValueError(
                f"indexer_bytes_per_token = {self.indexer_bytes_per_token}: expected less than kv_bytes_per_token "
                f"({self.kv_bytes_per_token}), of which it is a part"
            )
        return self


class HardwareSpec(Spec):
    """What a node and its engines can do at best. The rates of cards hold in each direction."""

    flops_per_s: PositiveFloat = Field(description="One engine's peak, in the precision of the model's products.")
    hbm_bytes: PositiveInt
    hbm_bytes_per_s: PositiveFloat
    snic_bytes_per_s: PositiveFloat
    cnic_bytes_per_s: PositiveFloat = Field(description="One engine's compute card.")
    memory_bytes_per_s: PositiveFloat = Field(description="One node's DRAM, reads and writes together.")
    buffer_bytes: PositiveInt = Field(description="One node's DRAM for the KV of requests under way.")
    burst_bytes: NonNegativeInt = Field(
        default=0, description="What passes a card at once after a rest: the depth of an emulated one's token bucket."
    )
    dram_tier_bytes: NonNegativeInt = Field(
        default=0, description="One node's DRAM for blocks that it read or wrote lately, beside its buffer; 0: none."
    )


class CalibrationSpec(Spec):
    """The few constants that are fitted: what share of the best is reached, and what things cost whatever their size.

    The defaults are those of `docs/simulator.md`, where the fit and its residuals stand.
    """

    prefill_efficiency: PositiveFloat = Field(default=0.42, le=1.0, description="Of `flops_per_s`, in prefill.")
    decode_efficiency: PositiveFloat = Field(default=0.4, le=1.0, description="Of `flops_per_s`, in decode.")
    hbm_efficiency: PositiveFloat = Field(default=0.8, le=1.0, description="Of `hbm_bytes_per_s`, in decode.")
    hbm_share: PositiveFloat = Field(default=0.93, le=1.0, description="Of `hbm_bytes`, for weights and KV.")
    snic_efficiency: PositiveFloat = Field(default=0.95, le=1.0, description="Of `snic_bytes_per_s`.")
    cnic_efficiency: PositiveFloat = Field(default=0.7, le=1.0, description="Of `cnic_bytes_per_s`.")
    read_bytes_per_s: PositiveFloat = Field(default=8e9, description="What one request alone reads from storage.")
    layer_s: NonNegativeFloat = Field(default=2.5e-4, description="One layer of a batch or step, whatever it holds.")
    exchange_s: NonNegativeFloat = Field(
        default=2.8e-4, description="In one layer: tokens' way to shared experts and back, beside what overlaps."
    )
    request_layer_s: NonNegativeFloat = Field(
        default=3.5e-4, description="One request in one layer of a prefill batch, however few tokens are computed."
    )
    block_copy_s: NonNegativeFloat = Field(
        default=2e-6, description="Without layerwise prefill: copying a Layer Block to a device, whatever its size."
    )
    round_s: NonNegativeFloat = Field(
        default=0.005, description="Least time from one round of the scheduler to the next: leaders fetch so often."
    )
    turn_s: NonNegativeFloat = Field(default=0.75, description="A turn's way through client, router and scheduler.")


class SimulatedSpec(Spec):
    """One simulated cluster, whole."""

    model: SimulatedModelSpec
    hardware: HardwareSpec
    calibration: CalibrationSpec = CalibrationSpec()
    measured: MeasuredSpec | None = Field(
        default=None, description="Computing as it was timed; absent: a roofline of `hardware` and `calibration`."
    )
    prefill_nodes: PositiveInt
    decode_nodes: PositiveInt
    engines_per_node: PositiveInt = 8
    block_tokens: PositiveInt = 64
    batch_tokens: PositiveInt = Field(default=16_384, description="Most new tokens of one engine's prefill batch.")
    prefix_tokens: PositiveInt | None = Field(
        default=None, description="Most stored tokens of one engine's prefill batch; absent: what device memory holds."
    )
    prefix_unit_tokens: PositiveInt = Field(default=1, description="Tokens in which a request's stored ones count.")
    decode_slots: PositiveInt = Field(default=1024, description="Requests that one engine decodes at a time.")
    scheduling: SchedulingSpec = SchedulingSpec()
    mode: ModeSpec = ModeSpec()

    @field_validator("mode", mode="before")
    @classmethod
    def _named_mode(cls, mode: object) -> object:
        return named_mode(mode, SIMULATED_MODES)

    @property
    def prefill_kv_bytes(self) -> float:
        """Device memory that a prefill engine has beside its weights."""
        return self.hardware.hbm_bytes * self.calibration.hbm_share - self.model.prefill_weights_bytes

    @property
    def decode_tokens(self) -> int:
        """Tokens whose KV fits beside the weights of a decode engine, whole blocks."""
        free = self.hardware.hbm_bytes * self.calibration.hbm_share - self.model.decode_weights_bytes
        return int(free / self.model.kv_bytes_per_token) // self.block_tokens * self.block_tokens

    @property
    def dram_tier_blocks(self) -> int:
        """Blocks whose KV fits the DRAM tier of a node."""
        return self.hardware.dram_tier_bytes // (self.model.kv_bytes_per_token * self.block_tokens)

    @property
    def buffer_tokens(self) -> int:
        """Tokens whose KV fits the DRAM buffer of a node."""
        return self.hardware.buffer_bytes // self.model.kv_bytes_per_token

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.measured is not None and max(self.measured.batch_widths) < self.batch_tokens:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens}: expected at most {max(self.measured.batch_widths)}, the widest "
                "batch of measured.batch_widths"
            )
        if self.hardware.memory_bytes_per_s <= self.hardware.snic_bytes_per_s:
            raise ValueError(
                f"hardware.memory_bytes_per_s = {self.hardware.memory_bytes_per_s:g}: expected more than "
                f"hardware.snic_bytes_per_s ({self.hardware.snic_bytes_per_s:g}), which passes memory"
            )
        for name, value in (("prefill", self.prefill_kv_bytes), ("decode", float(self.decode_tokens))):
            if value <= 0:
                weights = getattr(self.model, f"{name}_weights_bytes")
                raise ValueError(
                    f"hardware.hbm_bytes = {self.hardware.hbm_bytes}: expected room for "
                    f"model.{name}_weights_bytes ({weights}) and KV within calibration.hbm_share"
                )
        return self
