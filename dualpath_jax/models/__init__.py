"""The DeepSeek-V3-style decoder in Flax: the only place that knows Flax."""

from dualpath_jax.models.agreement import agreement_epsilon, routing_noise
from dualpath_jax.models.checkpoint import restore, save
from dualpath_jax.models.decoder import Decoder, DecoderLayer
from dualpath_jax.models.feed_forward import DenseFFN, MoE
from dualpath_jax.models.kv import kv_layout, model_digest, round_kv
from dualpath_jax.models.loading import check_hugging_face, load_hugging_face, weights_id
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
from dualpath_jax.models.reference import (
    Decision,
    ReferenceRun,
    reference_logits,
    reference_logprobs,
    reference_run,
)
from dualpath_jax.models.tensor_files import CheckpointError

__all__ = [
    "ENGINE_AXIS",
    "MLA",
    "CheckpointError",
    "Decision",
    "Decoder",
    "DecoderLayer",
    "DenseFFN",
    "MoE",
    "RMSNorm",
    "ReferenceRun",
    "Structure",
    "agreement_epsilon",
    "check_hugging_face",
    "flatten",
    "kv_layout",
    "load_hugging_face",
    "model_digest",
    "named_parameters",
    "partition_specs",
    "reference_logits",
    "reference_logprobs",
    "reference_run",
    "restore",
    "round_kv",
    "routing_noise",
    "save",
    "seed_weights_id",
    "shardings",
    "weights_id",
]
