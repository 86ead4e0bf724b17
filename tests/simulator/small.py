"""A cluster whose times can be worked out by hand, and workloads of a few turns."""

import numpy as np

from dualpath_configs import (
    SIMULATED_MODES,
    CalibrationSpec,
    HardwareSpec,
    MeasuredSpec,
    SimulatedModelSpec,
    SimulatedSpec,
)
from dualpath_scheduler.simulator.workload import Workload

MODEL = SimulatedModelSpec(
    layers=2,
    kv_bytes_per_token=1000,
    projection_flops_per_token=1000.0,
    ffn_flops_per_token=1000.0,
    attention_flops_per_pair=1e-9,
    prefill_weights_bytes=1_000_000,
    decode_weights_bytes=1_000_000,
)
HARDWARE = HardwareSpec(
    flops_per_s=1e6,  # a prefilled token takes 2 ms
    hbm_bytes=10_000_000,
    hbm_bytes_per_s=1e8,  # a decode step reads the weights in 10 ms
    snic_bytes_per_s=1e6,  # 1,000 tokens of KV a second
    cnic_bytes_per_s=1e7,  # 10,000
    memory_bytes_per_s=1e12,
    buffer_bytes=10_000_000,
)
CALIBRATION = CalibrationSpec(
    prefill_efficiency=1.0,
    decode_efficiency=1.0,
    hbm_efficiency=1.0,
    hbm_share=1.0,
    snic_efficiency=1.0,
    cnic_efficiency=1.0,
    read_bytes_per_s=1e12,
    layer_s=0.0,
    exchange_s=0.0,
    request_layer_s=0.0,
    block_copy_s=0.0,
    turn_s=0.0,
    round_s=0.0,
)
MEASURED = MeasuredSpec(
    batch_widths=(64, 256),
    batch_s=(0.04, 0.1),
    pair_s=1e-6,
    step_s=0.010,
    step_request_s=1e-3,
    step_token_s=1e-5,
    tokens_per_s=20_000.0,
)


def small_spec(mode: str = "dualpath", **changes: object) -> SimulatedSpec:
    """One engine on each side, unless `changes` say otherwise."""
    fields = {"prefill_nodes": 1, "decode_nodes": 1, "engines_per_node": 1, **changes}
    return SimulatedSpec(
        model=fields.pop("model", MODEL),
        hardware=fields.pop("hardware", HARDWARE),
        calibration=fields.pop("calibration", CALIBRATION),
        mode=SIMULATED_MODES[mode],
        **fields,
    )


def workload(*sessions: list[tuple[int, int]], arrivals_s: tuple[float, ...] = (), pause_s: float = 0.0) -> Workload:
    """Sessions as lists of (appended, generated) tokens, with a pause before each turn but the first.

    All arrive at once unless it is said when. A pause gives the blocks of a turn the time to be stored.
    """
    turns = [turn for session in sessions for turn in session]
    return Workload(
        name="by hand",
        first=np.cumsum([0, *map(len, sessions)]).astype(np.int64),
        append_tokens=np.array([append for append, _ in turns], np.int32),
        generate_tokens=np.array([generate for _, generate in turns], np.int32),
        delay_s=np.array([pause_s if turn else 0.0 for session in sessions for turn in range(len(session))]),
        arrival_s=np.array(arrivals_s or [0.0] * len(sessions)),
    )
