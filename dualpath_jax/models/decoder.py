"""The DeepSeek-V3-style decoder: parameters and the pieces of a step. What changes (KV, positions) is an argument."""

from typing import Self, final

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from dualpath_configs.model import ModelSpec
from dualpath_jax.models.feed_forward import DenseFFN, MoE
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.norm import RMSNorm
from dualpath_jax.models.parameters import Declare, draw


@final
class DecoderLayer(nnx.Module):
    """One layer, or a stack of equal layers whose arrays have a leading layer axis (run by `jax.lax.scan`).

    A layer's step, which the caller composes around its own attention core:

        h = input_norm(x);  x = x + attention.project(core(attention.queries(h, positions), KV))
        x = x + ffn(post_norm(x), axis)
    """

    def __init__(self, spec: ModelSpec, *, layers: int | None, dense: bool) -> None:
        declare = Declare(jnp.dtype(spec.compute_dtype), layers)
        self.input_norm = RMSNorm(declare, "hidden", spec.hidden_size, eps=spec.rms_norm_eps)
        self.attention = MLA(spec, declare)
        self.post_norm = RMSNorm(declare, "hidden", spec.hidden_size, eps=spec.rms_norm_eps)
        self.ffn: DenseFFN | MoE
        if dense:
            self.ffn = DenseFFN(declare, spec.hidden_size, spec.intermediate_size)
        else:
            self.ffn = MoE(spec, declare)


@final
class Decoder(nnx.Module):
    """The whole model. `dense` stacks the first `first_k_dense_replace` layers, `moe` the rest; an empty one is None.

    `Decoder(spec)` only declares its parameters; `initialize`, `load_hugging_face` and `restore` give them values.
    """

    def __init__(self, spec: ModelSpec) -> None:
        declare = Declare(jnp.dtype(spec.compute_dtype))
        dense, moe = spec.first_k_dense_replace, spec.num_hidden_layers - spec.first_k_dense_replace
        self.spec = spec
        # Tied to the head, it must keep the logits of order 1; else the stream that it begins.
        scale = spec.hidden_size**-0.5 if spec.tie_word_embeddings else 1.0
        self.embedding = declare({"vocab": spec.vocab_size, "hidden": spec.hidden_size}, std=scale)
        self.dense = DecoderLayer(spec, layers=dense, dense=True) if dense else None
        self.moe = DecoderLayer(spec, layers=moe, dense=False) if moe else None
        self.norm = RMSNorm(declare, "hidden", spec.hidden_size, eps=spec.rms_norm_eps)
        head_sizes = {"hidden": spec.hidden_size, "vocab": spec.vocab_size}
        self.head = None if spec.tie_word_embeddings else declare.weight(head_sizes, fan_in=spec.hidden_size)

    @classmethod
    def initialize(cls, spec: ModelSpec, seed: int, mesh: Mesh | None = None) -> Self:
        """Values from a seed, the same on every mesh and in every process; scales keep KV and logits of order 1."""
        return draw(cls(spec), seed, mesh)

    @property
    def stacks(self) -> tuple[DecoderLayer, ...]:
        """The stacks that exist, in the order in which they run."""
        return tuple(stack for stack in (self.dense, self.moe) if stack is not None)

    def embed(self, tokens_T: jax.Array) -> jax.Array:
        """Token ids `[T]` to the residual stream `[T, D]`."""
        return self.embedding[...][tokens_T]

    def logits(self, x_TD: jax.Array) -> jax.Array:
        """The last layer's output `[T, D]`, not yet normed, to logits float32 `[T, vocab]`."""
        head = self.embedding[...].T if self.head is None else self.head[...]
        return jnp.matmul(self.norm(x_TD), head, preferred_element_type=jnp.float32)
