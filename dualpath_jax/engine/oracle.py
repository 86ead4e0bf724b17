"""The no-cache reference of either engine: the whole sequence anew, slow and obvious."""

from collections.abc import Callable, Sequence

import numpy as np

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import Sampling, TokenChoice
from dualpath_jax.engine.fake import FakeEngineGroup, choose, digest, new_kv

Oracle = Callable[[Sequence[int], Sequence[int]], list[TokenChoice]]
"""`oracle(prompt, generated)`: the choice at each generated position, given the tokens before it."""


def build_oracle(spec: ClusterSpec) -> tuple[Oracle, float]:
    """The oracle of the spec's engine kind, and the ε within which a run must agree with it (0: equality)."""
    if spec.engine.kind == "fake":
        return _fake_oracle(spec), 0.0
    return _flax_oracle(spec)


def _fake_oracle(spec: ClusterSpec) -> Oracle:
    engine = FakeEngineGroup(spec)
    layers, words = engine.layout.layers, engine.layout.token_layer_bytes // 8

    def choices(prompt: Sequence[int], generated: Sequence[int]) -> list[TokenChoice]:
        tokens = np.array([*prompt, *generated])
        kv = new_kv(0, layers, None, tokens, words)
        ends = range(len(prompt), len(tokens))
        return [
            choose(digest(kv[:, :end], 0, 0), spec.model.vocab_size, end, Sampling(), int(tokens[end])) for end in ends
        ]

    return choices


def _flax_oracle(spec: ClusterSpec) -> tuple[Oracle, float]:
    from dualpath_jax.engine.flax_engine import engine_mesh, load_model
    from dualpath_jax.models import agreement_epsilon, reference_logprobs

    model = load_model(spec, engine_mesh(1))

    def choices(prompt: Sequence[int], generated: Sequence[int]) -> list[TokenChoice]:
        logprobs = reference_logprobs(model, [*prompt, *generated])
        rows = logprobs[len(prompt) - 1 : len(prompt) - 1 + len(generated)]
        result = []
        for row, token in zip(rows, generated, strict=True):
            second, first = np.argsort(row, kind="stable")[-2:]
            best = (float(row[first]), float(row[second]))
            result.append(TokenChoice(int(token), float(row[token]), (int(first), int(second)), best))
        return result

    return choices, agreement_epsilon(spec.model)
