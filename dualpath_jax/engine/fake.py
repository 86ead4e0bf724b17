"""An engine whose answers can be worked out by hand, for tests of everything around an engine.

The KV of layer l at position p is a function of l, of the KV of l at p - 1 and of the token at p, so of all tokens up
to there; the next token is a function of every byte of KV that the engine was given. One wrong, stale or missing
byte changes a token. There is no rounding: agreement on this engine is equality.

    state(l, p)  = mix(state(l, p - 1) + mix(token(p) + 1)),  state(l, -1) = mix(l)
    kv(l, p)     = words  state(l, p) * odd(j)                 for j = 0, 1, ... (the first word is the state itself)
    digest       = sum over l, p, j of  kv(l, p)[j] * odd(weight(l, p, j))   modulo 2**64
    next token   = mix(digest) modulo the vocabulary
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dualpath_configs import ClusterSpec
from dualpath_jax.engine.base import (
    DecodeRequest,
    EngineGroup,
    EngineLimits,
    PrefillChunk,
    PrefillPass,
    Sampling,
    Slot,
    Stage,
    TokenChoice,
)
from dualpath_storage.keys import KVIdentity
from dualpath_storage.layout import KVLayout

_WORD = np.dtype("<u8")


def mix(value: np.ndarray | np.uint64 | int) -> np.ndarray:
    """A 64-bit finalizer (splitmix64), elementwise."""
    with np.errstate(over="ignore"):
        z = np.asarray(value, _WORD) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def new_kv(first: int, last: int, previous: np.ndarray | None, tokens: np.ndarray, words: int) -> np.ndarray:
    """KV words `[layers, tokens, words]` of `tokens` in layers `[first, last)` after states `previous` `[layers]`."""
    state = mix(np.arange(first, last, dtype=_WORD)) if previous is None else previous
    steps = mix(tokens.astype(_WORD) + np.uint64(1))
    states = np.empty((last - first, len(tokens)), _WORD)
    with np.errstate(over="ignore"):
        for i, step in enumerate(steps):
            state = mix(state + step)
            states[:, i] = state
        odd = np.arange(words, dtype=_WORD) * np.uint64(2) + np.uint64(1)
        return states[:, :, None] * odd


def digest(kv: np.ndarray, first_layer: int, first_position: int) -> int:
    """The weighted sum over KV words `[layers, tokens, words]`; sums of parts add up to the sum of the whole."""
    layers, tokens, words = kv.shape
    layer = np.arange(first_layer, first_layer + layers, dtype=_WORD)[:, None, None] << np.uint64(48)
    position = np.arange(first_position, first_position + tokens, dtype=_WORD)[None, :, None] << np.uint64(16)
    weight = mix(layer + position + np.arange(words, dtype=_WORD)) | np.uint64(1)
    with np.errstate(over="ignore"):
        return int((kv * weight).sum(dtype=_WORD))


def choose(total: int, vocab_size: int, position: int, sampling: Sampling, forced: int | None) -> TokenChoice:
    """The token after KV of digest `total`: the greedy one, a drawn one, or the forced one with its log-probability."""
    total %= 2**64
    best = int(mix(total) % np.uint64(vocab_size))
    token = best
    if sampling.temperature > 0:
        token = int(mix(total ^ sampling.seed ^ position) % np.uint64(vocab_size))
    if forced is not None:
        token = forced
    logprob = -float(mix((total + token) % 2**64) % np.uint64(1024)) / 1024  # exact in float32
    return TokenChoice(token, logprob, (best, (best + 1) % vocab_size), (-0.125, -7.0))


@dataclass
class _Sequence:
    """A request in the decode batch: its KV words `[layers, capacity, words]` and how many tokens of it are there."""

    request: DecodeRequest
    slot: Slot
    kv: np.ndarray
    length: int
    digest: int
    last_token: int
    owed: int = field(default=0)


class FakeEngineGroup(EngineGroup):
    """The engine contract without a model; exact, and fast enough to test a cluster with."""

    def __init__(self, spec: ClusterSpec, *, local_engines: range | None = None) -> None:
        model = spec.model
        self.layout = KVLayout.mla(
            layers=model.num_hidden_layers,
            latent=model.kv_lora_rank,
            rope=model.qk_rope_head_dim,
            dtype=model.kv_dtype,
            block_tokens=spec.block_tokens,
        )
        if self.layout.token_layer_bytes % 8:
            raise ValueError(f"KV of {self.layout.token_layer_bytes} bytes a token and layer: expected a multiple of 8")
        self.identity = KVIdentity(
            "fake", f"seed:{spec.weights_seed}", spec.weights_version, self.layout.digest.hex(), spec.block_tokens
        )
        self.engines = spec.engines_per_node
        self.local_engines = range(self.engines) if local_engines is None else local_engines
        self.vocab_size = model.vocab_size
        self.limits = EngineLimits(
            prefill_tokens=max(spec.engine.prefill_token_buckets),
            prefix_tokens=max(spec.engine.prefix_token_buckets),
            decode_slots=spec.engine.decode_slots,
            decode_tokens=spec.engine.decode_pages * spec.block_tokens,
        )
        self._seconds_per_token = spec.engine.fake_seconds_per_token
        self._words = self.layout.token_layer_bytes // 8
        self._pass: PrefillPass | None = None
        self._totals: list[int] = []
        self._next_layer = 0
        self._sequences: dict[Slot, _Sequence] = {}
        self._serial = 0

    def warm_up_prefill(self, layer_groups: Sequence[tuple[int, int]]) -> None:
        pass

    def warm_up_decode(self) -> None:
        pass

    def plan_prefill(self, chunks: Sequence[PrefillChunk]) -> PrefillPass:
        tokens, blocks = [0] * self.engines, [0] * self.engines
        token_offsets, stage_blocks = [], []
        for chunk in chunks:
            token_offsets.append(tokens[chunk.engine])
            stage_blocks.append(blocks[chunk.engine])
            tokens[chunk.engine] += len(chunk.tokens)
            blocks[chunk.engine] += chunk.start // self.layout.block_tokens
        most_tokens, most_prefix = max(tokens), max(blocks) * self.layout.block_tokens
        if most_tokens > self.limits.prefill_tokens or most_prefix > self.limits.prefix_tokens:
            raise ValueError(
                f"a pass of {most_tokens} new and {most_prefix} stored tokens on one engine: expected at most "
                f"{self.limits.prefill_tokens} and {self.limits.prefix_tokens}"
            )
        return PrefillPass(tuple(chunks), tuple(token_offsets), tuple(stage_blocks), max(1, *blocks))

    def new_stage(self, layers: int) -> Stage:
        blocks = self.limits.prefix_tokens // self.layout.block_tokens
        return Stage(self.layout, engines=self.engines, layers=layers, blocks=blocks)

    def start_prefill(self, pass_: PrefillPass) -> None:
        self._pass, self._totals, self._next_layer = pass_, [0] * len(pass_.chunks), 0

    def run_layers(self, first: int, last: int, stage: Stage) -> np.ndarray:
        pass_ = self._running()
        if first != self._next_layer:
            raise ValueError(f"layers [{first}, {last}): expected to go on at layer {self._next_layer}")
        self._next_layer = last
        packed = max(len(c.tokens) + o for c, o in zip(pass_.chunks, pass_.token_offsets, strict=True))
        result = np.zeros((self.engines, last - first, packed, self._words), _WORD)
        for i, chunk in enumerate(pass_.chunks):
            prefix = self._prefix(pass_, i, last - first, stage)
            previous = prefix[:, -1, 0] if chunk.start else None
            kv = new_kv(first, last, previous, chunk.tokens, self._words)
            self._totals[i] += digest(prefix, first, 0) + digest(kv, first, chunk.start)
            offset = pass_.token_offsets[i]
            result[chunk.engine, :, offset : offset + len(chunk.tokens)] = kv
        time.sleep(self._seconds_per_token * packed * (last - first) / self.layout.layers)
        return result[self.local_engines.start : self.local_engines.stop].view(np.uint8)

    def _prefix(self, pass_: PrefillPass, i: int, layers: int, stage: Stage) -> np.ndarray:
        chunk, layout = pass_.chunks[i], self.layout
        begin = stage.offset(pass_, layers, engine=chunk.engine, layer=0, block=0)
        size = layers * pass_.stage_capacity * layout.layer_block_bytes
        whole = stage.buffer[begin : begin + size].view(_WORD)
        first = pass_.stage_blocks[i] * layout.block_tokens
        return whole.reshape(layers, -1, self._words)[:, first : first + chunk.start]

    def finish_prefill(self) -> list[TokenChoice | None]:
        pass_ = self._running()
        if self._next_layer != self.layout.layers:
            raise ValueError(f"finished after layer {self._next_layer}: expected all {self.layout.layers}")
        self._pass = None
        return [
            None
            if chunk.sampling is None or chunk.engine not in self.local_engines
            else choose(total, self.vocab_size, chunk.start + len(chunk.tokens), chunk.sampling, chunk.forced_token)
            for chunk, total in zip(pass_.chunks, self._totals, strict=True)
        ]

    def _running(self) -> PrefillPass:
        if self._pass is None:
            raise ValueError("no pass is running: expected start_prefill first")
        return self._pass

    def can_insert(self, engine: int, total_tokens: int) -> bool:
        mine = [s for s in self._sequences.values() if s.slot.engine == engine]
        used = sum(s.kv.shape[1] for s in mine)
        capacity = self.layout.blocks_of(total_tokens) * self.layout.block_tokens
        return len(mine) < self.limits.decode_slots and used + capacity <= self.limits.decode_tokens

    def insert(self, request: DecodeRequest, blocks: Sequence[np.ndarray]) -> Slot:
        layout, length = self.layout, request.prompt_tokens
        if not self.can_insert(request.engine, length + request.max_tokens):
            raise ValueError(
                f"request {request.request} of {length} + {request.max_tokens} tokens finds no room on engine "
                f"{request.engine}: ask can_insert first"
            )
        taken = {s.slot.index for s in self._sequences.values() if s.slot.engine == request.engine}
        self._serial += 1
        slot = Slot(request.engine, min(set(range(self.limits.decode_slots)) - taken), self._serial)
        capacity = layout.blocks_of(length + request.max_tokens) * layout.block_tokens
        kv = np.zeros((layout.layers, capacity, self._words), _WORD)
        for b, block in enumerate(blocks):
            words = block.view(_WORD).reshape(layout.layers, layout.block_tokens, self._words)
            kv[:, b * layout.block_tokens : (b + 1) * layout.block_tokens] = words
        total = digest(kv[:, :length], 0, 0)
        self._sequences[slot] = _Sequence(request, slot, kv, length, total, request.first_token, request.max_tokens - 1)
        return slot

    def step(self) -> list[tuple[Slot, TokenChoice]]:
        outputs = [(s.slot, self._advance(s)) for s in self._sequences.values() if s.owed > 0]
        if outputs:
            time.sleep(self._seconds_per_token)
        return [(slot, choice) for slot, choice in outputs if slot.engine in self.local_engines]

    def _advance(self, sequence: _Sequence) -> TokenChoice:
        request, position = sequence.request, sequence.length
        kv = new_kv(
            0, self.layout.layers, sequence.kv[:, position - 1, 0], np.array([sequence.last_token]), self._words
        )
        sequence.kv[:, position : position + 1] = kv
        sequence.digest += digest(kv, 0, position)
        sequence.length += 1
        sequence.owed -= 1
        forced = None
        if request.forced_tokens is not None:
            forced = request.forced_tokens[sequence.length - request.prompt_tokens]
        choice = choose(sequence.digest, self.vocab_size, sequence.length, request.sampling, forced)
        sequence.last_token = choice.token
        return choice

    def export_block(self, slot: Slot, block: int) -> np.ndarray:
        sequence = self._sequences[slot]
        end = (block + 1) * self.layout.block_tokens
        if end > sequence.length:
            raise ValueError(f"block {block} ends at token {end}: only {sequence.length} tokens have been fed")
        return sequence.kv[:, end - self.layout.block_tokens : end].copy().reshape(-1).view(np.uint8)

    def release(self, slot: Slot) -> None:
        self._sequences.pop(slot, None)

    def close(self) -> None:
        self._sequences.clear()
        self._pass = None
