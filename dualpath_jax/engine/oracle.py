"""The no-cache reference of either engine: the whole sequence anew, slow and obvious."""

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import Sampling, TokenChoice
from dualpath_jax.engine.fake import FakeEngineGroup, choose, digest, new_kv

if TYPE_CHECKING:
    # The fake engine's reference must not need JAX.
    from dualpath_jax.models import Decision, Decoder


@dataclass(frozen=True)
class OracleRun:
    """One pass over a sequence.

    `choice(position)` is what the model says at a position that was asked for, given the tokens before it: how likely
    the sequence's own token is, and which two are most likely. `near_ties` are the choices of routers, with their
    margins, that another correct run may make the other way.
    """

    choice: Callable[[int], TokenChoice]
    near_ties: Mapping["Decision", float]


class Oracle(abc.ABC):
    """`oracle(prompt, generated)`: the choice at each generated position, given the tokens before it."""

    def __call__(self, prompt: Sequence[int], generated: Sequence[int]) -> list[TokenChoice]:
        tokens = [*prompt, *generated]
        positions = range(len(prompt), len(tokens))
        run = self.run(tokens, positions)
        return [run.choice(position) for position in positions]

    @abc.abstractmethod
    def run(self, tokens: Sequence[int], positions: Collection[int], tipped: Collection["Decision"] = ()) -> OracleRun:
        """One pass, for choices at `positions` (from 1), with these choices of routers made the other way."""


def build_oracle(spec: ClusterSpec) -> tuple[Oracle, float]:
    """The oracle of the spec's engine kind, and the ε within which a run must agree with it (0: equality)."""
    if spec.engine.kind == "fake":
        return FakeOracle(spec), 0.0
    from dualpath_jax.engine.flax_engine import engine_mesh, load_model
    from dualpath_jax.models import agreement_epsilon

    return FlaxOracle(load_model(spec, engine_mesh(1))), agreement_epsilon(spec.model)


@final
class FakeOracle(Oracle):
    """Of the fake engine, which has no routers."""

    def __init__(self, spec: ClusterSpec) -> None:
        engine = FakeEngineGroup(spec)
        self._layers, self._words = engine.layout.layers, engine.layout.token_layer_bytes // 8
        self._vocab_size = spec.model.vocab_size

    def run(self, tokens: Sequence[int], positions: Collection[int], tipped: Collection["Decision"] = ()) -> OracleRun:
        kv = new_kv(0, self._layers, None, np.asarray(tokens), self._words)

        def choice(position: int) -> TokenChoice:
            state = digest(kv[:, :position], 0, 0)
            return choose(state, self._vocab_size, position, Sampling(), int(tokens[position]))

        return OracleRun(choice, {})


@final
class FlaxOracle(Oracle):
    """Of the Flax engine."""

    def __init__(self, model: "Decoder") -> None:
        self._model = model

    def run(self, tokens: Sequence[int], positions: Collection[int], tipped: Collection["Decision"] = ()) -> OracleRun:
        from dualpath_jax.models.reference import log_softmax, reference_run

        run = reference_run(self._model, tokens, tipped)
        # Only these rows are kept: all of them are large.
        rows = {position: log_softmax(run.logits[position - 1 : position])[0] for position in positions}

        def choice(position: int) -> TokenChoice:
            row, token = rows[position], int(tokens[position])
            second, first = (int(index) for index in np.argsort(row, kind="stable")[-2:])
            return TokenChoice(token, float(row[token]), (first, second), (float(row[first]), float(row[second])))

        return OracleRun(choice, run.near_ties(self._model.spec))
