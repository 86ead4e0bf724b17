"""The DeepSeek-V3-style decoder in Flax: the only place that knows Flax."""

from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.feed_forward import DenseFFN, MoE
from dualpath_jax.models.kv import kv_layout, model_digest, round_kv
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.norm import RMSNorm
from dualpath_jax.models.parameters import (
    ENGINE_AXIS,
    Structure,
    flatten,
    named_parameters,
    partition_specs,
    shardings,
)
from dualpath_jax.models.reference import reference_logits, reference_logprobs

__all__ = [
    "ENGINE_AXIS",
    "MLA",
    "Decoder",
    "DecoderLayer",
    "DenseFFN",
    "MoE",
    "RMSNorm",
    "Structure",
    "flatten",
    "kv_layout",
    "model_digest",
    "named_parameters",
    "partition_specs",
    "reference_logits",
    "reference_logprobs",
    "round_kv",
    "shardings",
]
