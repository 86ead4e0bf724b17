"""The DeepSeek-V3-style decoder in Flax: the only place that knows Flax."""

from dualpath_jax.models.agreement import ROUTING_NOISE, agreement_epsilon
from dualpath_jax.models.checkpoint import restore, save
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.feed_forward import DenseFFN, MoE
from dualpath_jax.models.kv import kv_layout, model_digest, round_kv
from dualpath_jax.models.loading import load_hugging_face, weights_id
from dualpath_jax.models.mla import MLA
from dualpath_jax.models.norm import RMSNorm
from dualpath_jax.models.parameters import (
    ENGINE_AXIS,
    Structure,
    flatten,
    named_parameters,
    partition_specs,
    seed_weights_id,
    shardings,
)
from dualpath_jax.models.reference import reference_logits, reference_logprobs, reference_routing_margins
from dualpath_jax.models.tensor_files import CheckpointError

__all__ = [
    "ENGINE_AXIS",
    "MLA",
    "ROUTING_NOISE",
    "CheckpointError",
    "Decoder",
    "DecoderLayer",
    "DenseFFN",
    "MoE",
    "RMSNorm",
    "Structure",
    "agreement_epsilon",
    "flatten",
    "kv_layout",
    "load_hugging_face",
    "model_digest",
    "named_parameters",
    "partition_specs",
    "reference_logits",
    "reference_logprobs",
    "reference_routing_margins",
    "restore",
    "round_kv",
    "save",
    "seed_weights_id",
    "shardings",
    "weights_id",
]
