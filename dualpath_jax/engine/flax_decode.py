"""The decode batch of an engine group: paged KV in device memory, static slots, one program for every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from dualpath_configs.cluster import ClusterSpec
from dualpath_jax.engine.base import DecodeRequest, Slot, TokenChoice
from dualpath_jax.engine.flax_layers import decode_layer
from dualpath_jax.engine.flax_pages import PagePool
from dualpath_jax.engine.flax_programs import Body, ShardedModel, layers_per_stack, scan_layers
from dualpath_jax.engine.flax_sampling import ChosenRows, SamplingRows, choose, token_choice
from dualpath_jax.models.attention import WORDS, HostOrDevice
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.paged_attention import table_pages
from dualpath_storage.layout import KVLayout

INSERT_BLOCKS = 8
"""Full Blocks that one call copies into pages."""


@final
class StepInputs(NamedTuple):
    """One token per slot, `[N]` each, `table` `[N, P]`; `page` is where the token's KV goes, past the end: nowhere."""

    token: HostOrDevice
    length: HostOrDevice
    page: HostOrDevice
    table: HostOrDevice
    sampling: SamplingRows


@final
class InsertInputs(NamedTuple):
    """Full Blocks `[B, L, t, W]` and the page of each; a page past the end: nowhere."""

    blocks: HostOrDevice
    pages: HostOrDevice


@final
@dataclass
class Occupant:
    """A request in its slot. `length` tokens have been fed; `token` is the next to feed."""

    request: DecodeRequest
    slot: Slot
    pages: list[int]
    length: int
    token: int
    generated: int = 1

    @property
    def owes(self) -> bool:
        return self.generated < self.request.max_tokens

    @property
    def forced(self) -> int | None:
        tokens = self.request.forced_tokens
        return None if tokens is None else tokens[self.generated]


@final
class DecodeBatch:
    """The decode half of an engine group."""

    def __init__(self, spec: ClusterSpec, layout: KVLayout, model: ShardedModel) -> None:
        self._spec = spec
        self._layout = layout
        self._model = model
        self._pages = spec.engine.decode_pages
        self._shape = model.engines, spec.engine.decode_slots
        self._word = WORDS[spec.model.kv_dtype]
        width = layout.token_layer_bytes // np.dtype(self._word).itemsize
        self._block_shape = layout.layers, layout.block_tokens, width
        self._pools = [PagePool(self._pages) for _ in range(model.engines)]
        self._occupants: dict[tuple[int, int], Occupant] = {}
        self._serial = 0
        self._table = np.zeros((*self._shape, table_pages(spec.max_context_blocks, layout.block_tokens)), np.int32)
        self._blocks = np.zeros((model.engines, INSERT_BLOCKS, *self._block_shape), self._word)
        self._step = model.program(_step_body(spec), donate_state=True)
        self._insert = model.program(_insert_body, donate_state=True)
        self._export = jax.jit(lambda cache, page: jax.lax.dynamic_index_in_dim(cache[0], page, keepdims=False))
        shape = model.engines, self._pages, *self._block_shape
        self._cache = jax.jit(lambda: jnp.zeros(shape, self._word), out_shardings=model.device_sharding)()

    def can_insert(self, engine: int, total_tokens: int) -> bool:
        """See `EngineGroup.can_insert`."""
        return (
            total_tokens <= self._spec.max_context_tokens
            and self._layout.blocks_of(total_tokens) <= self._pools[engine].free
            and self._free_slot(engine) is not None
        )

    def insert(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> Slot:
        """See `EngineGroup.insert`."""
        self._check(request, blocks)
        index = self._free_slot(request.engine)
        assert index is not None
        self._serial += 1
        slot = Slot(request.engine, index, self._serial)
        total = request.prompt_tokens + request.max_tokens
        pages = self._pools[request.engine].take(self._layout.blocks_of(total))
        for start in range(0, self._layout.blocks_of(request.prompt_tokens), INSERT_BLOCKS):
            # Every process runs this as often; another's engine gets its blocks there.
            self._copy_in(request.engine, blocks[start : start + INSERT_BLOCKS], pages[start:])
        self._table[slot.engine, slot.index, : len(pages)] = pages
        self._occupants[slot.engine, slot.index] = Occupant(
            request, slot, pages, length=request.prompt_tokens, token=request.first_token
        )
        return slot

    def step(self) -> list[tuple[Slot, TokenChoice]]:
        """See `EngineGroup.step`."""
        active = {place: occupant for place, occupant in sorted(self._occupants.items()) if occupant.owes}
        if not active:
            return []
        chosen = self.run_step(active)
        results = []
        for (engine, row), occupant in active.items():
            occupant.length += 1
            occupant.generated += 1
            if engine in self._model.local:
                choice = token_choice(chosen, (engine - self._model.local.start, row))
                occupant.token = choice.token
                results.append((occupant.slot, choice))
        return results

    def run_step(self, active: dict[tuple[int, int], Occupant]) -> ChosenRows:
        """Feed the next token of these occupants; the rows of local engines, when their devices have finished."""
        inputs = StepInputs(
            np.zeros(self._shape, np.int32),
            np.zeros(self._shape, np.int32),
            np.full(self._shape, self._pages, np.int32),
            self._table,
            SamplingRows.empty(*self._shape),
        )
        for place, occupant in active.items():
            inputs.token[place] = occupant.token
            inputs.length[place] = occupant.length
            inputs.page[place] = occupant.pages[occupant.length // self._layout.block_tokens]
            inputs.sampling.fill(place, occupant.request.sampling, occupant.length + 1, occupant.forced)
        self._cache, chosen = self._step(self._cache, self._model.to_device(inputs))
        # The page table may change only when the devices have read it.
        jax.block_until_ready(self._cache)
        return self._model.fetch(chosen)

    def export_block(self, slot: Slot, block: int) -> np.ndarray:
        """See `EngineGroup.export_block`."""
        occupant = self._occupants.get((slot.engine, slot.index))
        if occupant is None or occupant.slot != slot:
            raise ValueError(f"{slot} was released: expected a slot of a request that is there")
        full = occupant.length // self._layout.block_tokens
        if not 0 <= block < full:
            raise ValueError(
                f"block {block} of {slot}: expected [0, {full}), the blocks whose tokens have all been fed"
            )
        return self._read_page(slot.engine, occupant.pages[block])

    def release(self, slot: Slot) -> None:
        """See `EngineGroup.release`."""
        occupant = self._occupants.get((slot.engine, slot.index))
        if occupant is not None and occupant.slot == slot:
            del self._occupants[slot.engine, slot.index]
            self._pools[slot.engine].give_back(occupant.pages)

    def warm_up(self) -> None:
        """Compile everything, changing nothing."""
        self.run_step({})
        self._copy_in(0, [], [])
        for engine in self._model.local:
            self._read_page(engine, 0)

    def close(self) -> None:
        """Free the cache."""
        self._occupants.clear()
        self._cache.delete()

    def _free_slot(self, engine: int) -> int | None:
        taken = {index for owner, index in self._occupants if owner == engine}
        return next((index for index in range(self._shape[1]) if index not in taken), None)

    def _check(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> None:
        total, prompt = request.prompt_tokens + request.max_tokens, request.prompt_tokens
        wanted = self._layout.blocks_of(prompt)
        forced = request.forced_tokens
        checks = [
            (prompt >= 1 and request.max_tokens >= 1, f"{prompt} prompt and {request.max_tokens} tokens", "1 or more"),
            (self.can_insert(request.engine, total), f"{total} tokens in all", "can_insert to be true"),
            (
                len(blocks) == wanted or request.engine not in self._model.local,
                f"{len(blocks)} blocks",
                f"{wanted} for {prompt} prompt tokens",
            ),
            (
                all(block.size == self._layout.block_bytes for block in blocks),
                f"blocks of {sorted({block.size for block in blocks})} bytes",
                f"{self._layout.block_bytes}",
            ),
            (
                forced is None or len(forced) == request.max_tokens,
                f"{len(forced or ())} forced tokens",
                f"max_tokens ({request.max_tokens}) of them",
            ),
        ]
        for holds, value, expected in checks:
            if not holds:
                raise ValueError(f"request {request.request!r} has {value}: expected {expected}")

    def _copy_in(self, engine: int, blocks: Sequence[np.ndarray], pages: list[int]) -> None:
        places = np.full((self._model.engines, INSERT_BLOCKS), self._pages, np.int32)
        for row, (block, page) in enumerate(zip(blocks, pages, strict=False)):
            self._blocks[engine, row] = block.view(self._word).reshape(self._block_shape)
            places[engine, row] = page
        inputs = self._model.to_device(InsertInputs(self._blocks, places))
        self._cache = self._insert(self._cache, inputs)
        jax.block_until_ready(self._cache)  # then the staging array may be filled again

    def _read_page(self, engine: int, page: int) -> np.ndarray:
        shard = self._cache.addressable_shards[engine - self._model.local.start].data
        return np.array(self._export(shard, np.int32(page))).reshape(-1).view(np.uint8)


def _step_body(spec: ClusterSpec) -> Body:
    spans = layers_per_stack(spec.model, 0, spec.model.num_hidden_layers)

    def body(model: Decoder, cache_PLtW: jax.Array, inputs: StepInputs) -> tuple[jax.Array, ChosenRows]:
        def step(layer: DecoderLayer, x_ND: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
            return decode_layer(layer, x_ND, cache_PLtW, index=index, table_NP=inputs.table, length_N=inputs.length)

        firsts = jnp.zeros(len(spans), jnp.int32)
        counts = [count for _, count in spans]
        x_ND, own_LNW = scan_layers(model, model.embed(inputs.token), firsts=firsts, counts=counts, step=step)
        # The cache is read by all layers and written once: so it is updated in place.
        place_N = inputs.length % cache_PLtW.shape[2]
        cache = cache_PLtW.at[inputs.page, :, place_N].set(own_LNW.swapaxes(0, 1), mode="drop")
        return cache, choose(model.logits(x_ND), inputs.sampling)

    return body


def _insert_body(_: Decoder, cache_PLtW: jax.Array, inputs: InsertInputs) -> jax.Array:
    return cache_PLtW.at[inputs.pages].set(inputs.blocks, mode="drop")
