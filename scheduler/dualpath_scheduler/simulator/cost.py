"""What a batch or a step takes: operations and bytes over the rates of an engine, and costs that have no size."""

import abc
from collections.abc import Iterable, Sequence
from typing import final

from dualpath_configs import SimulatedSpec


class Cost(abc.ABC):
    """What the engines of one group compute in how many seconds; `cores` are those that this keeps busy."""

    prefill_cores = decode_cores = 0.0

    @abc.abstractmethod
    def attention_s(self, cached: int, new: int) -> float:
        """Attention of `new` tokens on `cached` ones and on each other, in all layers, projections included."""

    @abc.abstractmethod
    def batch_s(self, attention_s: Sequence[float], tokens: Sequence[int]) -> float:
        """A prefill batch: the attention and the new tokens of each engine."""

    def copying_s(self, tokens: int) -> float:
        """Calls for a prefix of so many tokens that is copied before prefill."""
        return 0.0

    def attended(self, context: float) -> float:
        """Tokens of KV that one new token reads."""
        return context

    @abc.abstractmethod
    def step_s(self, engines: Iterable[tuple[int, float, float]], clock: float) -> float:
        """One decode step of engines that wait for each other.

        Each has so many requests, of `context + clock` tokens each summed over them, and `attended` of those are read.
        """


@final
class Roofline(Cost):
    """That of one spec. All of it is linear in what a batch holds, so that it costs little to evaluate."""

    def __init__(self, spec: SimulatedSpec) -> None:
        model, hardware, fitted = spec.model, spec.hardware, spec.calibration
        self._sparse = model.sparse_tokens or None
        prefill = hardware.flops_per_s * fitted.prefill_efficiency
        self._projection_s = model.projection_flops_per_token / prefill
        self._attended_s = model.attention_flops_per_pair / prefill
        self._indexed_s = model.indexer_flops_per_pair / prefill
        self._ffn_s = model.ffn_flops_per_token / prefill
        exchange_s = fitted.exchange_s if model.experts_are_shared else 0.0
        self._batch_s = model.layers * (fitted.layer_s + exchange_s)
        self._copy_s = model.layers * fitted.block_copy_s / spec.block_tokens
        self._request_s = model.layers * fitted.request_layer_s

        decode = hardware.flops_per_s * fitted.decode_efficiency
        memory = hardware.hbm_bytes_per_s * fitted.hbm_efficiency
        self._step_s = model.layers * (fitted.layer_s + exchange_s)
        self._step_weights_s = model.decode_weights_bytes / memory
        self._request_compute_s = (model.projection_flops_per_token + model.ffn_flops_per_token) / decode
        self._attended_compute_s = model.attention_flops_per_pair / decode
        self._context_compute_s = model.indexer_flops_per_pair / decode
        self._attended_memory_s = (model.kv_bytes_per_token - model.indexer_bytes_per_token) / memory
        self._context_memory_s = model.indexer_bytes_per_token / memory

    def attention_s(self, cached: int, new: int) -> float:
        around = cached + 0.5 * new
        attended = around if self._sparse is None or around < self._sparse else self._sparse
        return self._request_s + new * (self._projection_s + attended * self._attended_s + around * self._indexed_s)

    def batch_s(self, attention_s: Sequence[float], tokens: Sequence[int]) -> float:
        """The attention of the slowest engine, then feed-forward networks of all tokens, spread over the engines."""
        return max(attention_s) + sum(tokens) / len(tokens) * self._ffn_s + self._batch_s

    def copying_s(self, tokens: int) -> float:
        """A call for each Layer Block."""
        return tokens * self._copy_s

    def attended(self, context: float) -> float:
        return context if self._sparse is None or context < self._sparse else self._sparse

    def step_s(self, engines: Iterable[tuple[int, float, float]], clock: float) -> float:
        """As long as the slowest engine takes."""
        longest = self._step_weights_s
        for requests, context, attended in engines:
            context += requests * clock
            memory = self._step_weights_s + attended * self._attended_memory_s + context * self._context_memory_s
            compute = (
                requests * self._request_compute_s
                + attended * self._attended_compute_s
                + context * self._context_compute_s
            )
            longest = max(longest, memory, compute)
        return self._step_s + longest
