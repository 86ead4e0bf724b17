"""Layerwise prefill of packed passes: one layer group's prefix KV in device memory at a time."""

from typing import NamedTuple, final

import jax
import numpy as np
from jax import lax

from dualpath_configs.cluster import ClusterSpec
from dualpath_jax.engine.base import PrefillPass, Stage, TokenChoice
from dualpath_jax.engine.flax_layers import TileShape, prefill_layer
from dualpath_jax.engine.flax_packing import PackedPass, pack_pass
from dualpath_jax.engine.flax_programs import Body, Program, ShardedModel, layers_per_stack, scan_layers
from dualpath_jax.engine.flax_sampling import ChosenRows, SamplingRows, choose, token_choice
from dualpath_jax.models.attention import WORDS, HostOrDevice, QueryTiles
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_storage.layout import KVLayout

CHOICE_ROWS = 16
"""Next tokens that are chosen at a time on an engine; a pass that samples more takes more calls."""


@final
class PassInputs(NamedTuple):
    """What every layer of a pass needs."""

    positions: HostOrDevice
    tiles: QueryTiles


@final
class GroupInputs(NamedTuple):
    """A layer group's prefix KV words `[G, S, W]`, in host memory, and its first layer in each stack."""

    pass_: PassInputs
    prefix: HostOrDevice
    firsts: HostOrDevice


@final
class ChoiceInputs(NamedTuple):
    """Packed places of the tokens whose successors are chosen, and how."""

    rows: HostOrDevice
    sampling: SamplingRows


@final
class RunningPass:
    """A pass on its way through the layers."""

    def __init__(self, pass_: PrefillPass, packed: PackedPass, inputs: PassInputs, x: jax.Array) -> None:
        self.pass_ = pass_
        self.packed = packed
        self.inputs = inputs
        self.x = x
        self.next_layer = 0


@final
class LayerwisePrefill:
    """The prefill half of an engine group. One pass at a time; `run_layers` blocks until its result is there."""

    def __init__(self, spec: ClusterSpec, layout: KVLayout, model: ShardedModel) -> None:
        self._spec = spec
        self._layout = layout
        self._model = model
        self._embed = model.program(lambda decoder, _, tokens: decoder.embed(tokens))
        self._choose = model.program(_choose_rows)
        self._groups: dict[tuple[int, tuple[int, ...]], Program] = {}
        self._running: RunningPass | None = None

    def start(self, pass_: PrefillPass) -> None:
        """Upload a pass and embed its tokens."""
        packed = pack_pass(self._spec, pass_)
        tiles = QueryTiles(packed.tile_count, *packed.tile_fields)
        tokens, inputs = self._model.to_device((packed.tokens, PassInputs(packed.positions, tiles)))
        self._running = RunningPass(pass_, packed, inputs, self._embed((), tokens))

    def run_layers(self, first: int, last: int, stage: Stage) -> np.ndarray:
        """Run a layer group; see `EngineGroup.run_layers`."""
        running = self._require()
        if first != running.next_layer:
            raise ValueError(f"layers [{first}, {last}): expected to go on with layer {running.next_layer}")
        spans = layers_per_stack(self._spec.model, first, last)
        program = self.group_program(running.packed.packed_tokens, tuple(count for _, count in spans))
        running.x, words = program(running.x, self._group_inputs(running, spans, last - first, stage))
        # The stage may be refilled and the arrays of the pass reused only when the devices have read them.
        jax.block_until_ready((running.x, words))
        running.next_layer = last
        return self._model.fetch(words).view(np.uint8)

    def finish(self) -> list[TokenChoice | None]:
        """Choose the next token of each chunk that carries `sampling`; see `EngineGroup.finish_prefill`."""
        running = self._require()
        layers = self._spec.model.num_hidden_layers
        if running.next_layer != layers:
            raise ValueError(f"the pass has run {running.next_layer} layers: expected all {layers} before its end")
        choices: list[TokenChoice | None] = [None] * len(running.pass_.chunks)
        for places in _choice_batches(running.pass_, self._model.engines):
            chosen = self._choose_batch(running, places)
            for (engine, row), chunk in places.items():
                if engine in self._model.local:
                    choices[chunk] = token_choice(chosen, (engine - self._model.local.start, row))
        self._running = None
        return choices

    def warm_up_choice(self) -> None:
        """Compile what chooses tokens for passes of the running one's width."""
        self._choose_batch(self._require(), {})

    def drop(self) -> None:
        """Forget the running pass."""
        self._running = None

    def group_program(self, packed_tokens: int, counts: tuple[int, ...]) -> Program:
        """The program of a layer group with so many layers of each stack, for passes of that width."""
        key = packed_tokens, counts
        if key not in self._groups:
            shape = TileShape.choose(
                self._spec.model, packed_tokens=packed_tokens, shard_tokens=self._spec.engine.shard_tokens
            )
            self._groups[key] = self._model.program(_layer_group(counts, shape), donate_state=True)
        return self._groups[key]

    def _require(self) -> RunningPass:
        if self._running is None:
            raise ValueError("no prefill pass is running: call start_prefill first")
        return self._running

    def _group_inputs(
        self, running: RunningPass, spans: tuple[tuple[int, int], ...], layers: int, stage: Stage
    ) -> GroupInputs:
        layout, engines = self._layout, self._model.engines
        tokens = running.pass_.stage_capacity * layout.block_tokens
        used = engines * layers * tokens * layout.token_layer_bytes
        if stage.buffer.size < used:
            raise ValueError(
                f"stage of {stage.buffer.size} bytes: expected at least {used} for {layers} layers of this pass; "
                f"use new_stage({layers})"
            )
        words = stage.buffer[:used].view(WORDS[self._spec.model.kv_dtype]).reshape(engines, layers, tokens, -1)
        firsts = np.tile(np.array([first for first, _ in spans], np.int32), (engines, 1))
        prefix = self._model.to_host_memory(words)
        return GroupInputs(running.inputs, prefix, self._model.to_device(firsts))

    def _choose_batch(self, running: RunningPass, places: dict[tuple[int, int], int]) -> ChosenRows:
        shape = self._model.engines, CHOICE_ROWS
        rows, sampling = np.zeros(shape, np.int32), SamplingRows.empty(*shape)
        for place, index in places.items():
            chunk = running.pass_.chunks[index]
            assert chunk.sampling is not None
            rows[place] = running.packed.last_rows[index]
            sampling.fill(place, chunk.sampling, chunk.start + len(chunk.tokens), chunk.forced_token)
        return self._model.fetch(self._choose(running.x, self._model.to_device(ChoiceInputs(rows, sampling))))


def _layer_group(counts: tuple[int, ...], shape: TileShape) -> Body:
    def body(model: Decoder, x_TD: jax.Array, inputs: GroupInputs) -> tuple[jax.Array, jax.Array]:
        def step(layer: DecoderLayer, x_TD: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
            prefix_SW = lax.dynamic_index_in_dim(inputs.prefix, index, keepdims=False)
            return prefill_layer(
                layer,
                x_TD,
                inputs.pass_.positions,
                prefix_SW=jax.device_put(prefix_SW, jax.memory.Space.Device),
                tiles=inputs.pass_.tiles,
                shape=shape,
            )

        return scan_layers(model, x_TD, firsts=inputs.firsts, counts=counts, step=step)

    return body


def _choose_rows(model: Decoder, x_TD: jax.Array, inputs: ChoiceInputs) -> ChosenRows:
    return choose(model.logits(x_TD[inputs.rows]), inputs.sampling)


def _choice_batches(pass_: PrefillPass, engines: int) -> list[dict[tuple[int, int], int]]:
    """Which chunk goes to which (engine, row) of which call of the choosing program."""
    batches: list[dict[tuple[int, int], int]] = []
    taken = [0] * engines
    for index, chunk in enumerate(pass_.chunks):
        if chunk.sampling is None:
            continue
        batch, row = divmod(taken[chunk.engine], CHOICE_ROWS)
        taken[chunk.engine] += 1
        while len(batches) <= batch:
            batches.append({})
        batches[batch][chunk.engine, row] = index
    return batches
