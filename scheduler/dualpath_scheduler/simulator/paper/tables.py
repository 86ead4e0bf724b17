"""Tables of the paper that need no run: traces, KV per computation, bottlenecks."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, final

import numpy as np

from dualpath_configs import load_simulated
from dualpath_scheduler.simulator.paper.experiment import Experiment, Results, Row
from dualpath_scheduler.simulator.paper.offline import LENGTHS
from dualpath_scheduler.simulator.paper.runs import Run
from dualpath_scheduler.simulator.paper_points import PRESETS
from dualpath_scheduler.simulator.plan.bottlenecks import admissible, peak_rates, resources
from dualpath_scheduler.simulator.plan.mix import Mix
from dualpath_scheduler.workload import PAPER_TRACES


@final
class Traces(Experiment):
    """Means over trajectories of the generated traces (the paper's table of its data sets)."""

    name: ClassVar[str] = "traces"
    measured: ClassVar[tuple[str, ...]] = ("turns", "append", "generation", "total", "context", "hit_rate")
    _hit_rates = MappingProxyType({"64K": "0.987"})

    def rows(self, results: Results) -> list[Row]:
        return [self._row(length) for length in LENGTHS]

    def _row(self, length: str) -> Row:
        work = Run("27b_1p1d", "basic", length, 500).workload()
        turns = np.diff(work.first)
        prompts = work.prompt_tokens()

        def mean(per_request: np.ndarray) -> float:
            return float((np.add.reduceat(per_request, work.first[:-1]) / turns).mean())

        return {
            "max_length": length,
            "turns": float(turns.mean()),
            "append": mean(work.append_tokens),
            "generation": mean(work.generate_tokens),
            "total": float((prompts + work.generate_tokens)[work.first[1:] - 1].mean()),
            "context": mean(prompts),
            "hit_rate": float(work.hit_tokens(64).sum() / prompts.sum()),
            "longest_turns": int(turns.max()),
        }

    def published(self) -> list[Mapping[str, str]]:
        rows: list[Mapping[str, str]] = []
        for length in LENGTHS:
            paper = PAPER_TRACES[f"paper-{length.lower()}"]
            values = (
                paper.turns, paper.append_tokens, paper.generate_tokens, paper.total_tokens, paper.context_tokens
            )  # fmt: skip
            row = {"max_length": length, **dict(zip(self.measured, map(str, values), strict=False))}
            rows.append({**row, "hit_rate": self._hit_rates.get(length, "")})
        return rows


@final
class KvPerCompute(Experiment):
    """GB of KV that are read for a PFLOP of prefill, append 429, contexts of 16K and 64K (the paper's table).

    The paper counts DeepSeek-V3.2's KV in FP8, which its completion times do not fit (`docs/simulator.md`): both.
    """

    name: ClassVar[str] = "kv_per_compute"
    measured: ClassVar[tuple[str, ...]] = ("gb_per_pflop",)
    _append = 429
    _kv_bytes = (("qwen2.5-32b", 262_144), ("ds660b", 48_068), ("ds660b", 78_324))

    def rows(self, results: Results) -> list[Row]:
        return [
            {
                "model": model,
                "context": context,
                "kv_bytes_per_token": kv_bytes,
                "gb_per_pflop": kv_bytes * context / 1e9 / (self._flops(model, context) / 1e15),
            }
            for (model, kv_bytes), context in itertools.product(self._kv_bytes, (16_384, 65_536))
        ]

    def _flops(self, model_name: str, context: int) -> float:
        model = load_simulated(PRESETS[model_name]).model
        attended = min(context, model.sparse_tokens or context)
        per_token = model.projection_flops_per_token + model.ffn_flops_per_token
        per_token += attended * model.attention_flops_per_pair + context * model.indexer_flops_per_pair
        return self._append * per_token

    def published(self) -> list[Mapping[str, str]]:
        paper = ((262_144, "qwen2.5-32b", (117, 267)), (48_068, "ds660b", (13, 36)))
        return [
            {"model": model, "context": str(context), "kv_bytes_per_token": str(kv_bytes), "gb_per_pflop": str(value)}
            for kv_bytes, model, values in paper
            for context, value in zip((16_384, 65_536), values, strict=True)
        ]


@final
class Bottlenecks(Experiment):
    """The bounds of P/D of the paper's bottleneck table, g = 8, s = 1, M = 500 GB/s."""

    name: ClassVar[str] = "bottlenecks"
    measured: ClassVar[tuple[str, ...]] = ("least", "most")
    _published = MappingProxyType(
        {
            "PE CNIC write": ("0.142857", ""),
            "DE CNIC read": ("", "6"),
            "DE CNIC write": ("", "3.5"),
            "DE memory": ("", "3.5"),
            "all": ("0.142857", "3.5"),
        }
    )

    def rows(self, results: Results) -> list[Row]:
        spec = load_simulated("660b_2p4d")
        rows = [row for row in resources(spec, Mix(1, 0, 0, 0), peak_rates(spec)) if not row.computes]
        bounds = {row.name: row.bounds(row.hits) for row in rows} | {"all": admissible(rows, others=False)}
        return [
            {"resource": name, "least": found.least or None, "most": found.most if np.isfinite(found.most) else None}
            for name, found in bounds.items()
        ]

    def published(self) -> list[Mapping[str, str]]:
        return [{"resource": name, "least": least, "most": most} for name, (least, most) in self._published.items()]
