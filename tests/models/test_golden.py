"""Logits equal those of transformers, for the committed checkpoints of tools/make_golden.py."""

import json

import numpy as np
import pytest

from dualpath_configs import ModelSpec
from dualpath_jax.models import load_hugging_face, reference_logits, reference_logprobs

NAMES = ["plain", "like_v3", "no_shared", "tied", "all_dense"]


def load(folder, **chosen):
    spec = ModelSpec.from_hugging_face(json.loads((folder / "config.json").read_text()))
    return load_hugging_face(folder, spec.model_copy(update={"kv_dtype": "float32", **chosen}))


@pytest.mark.parametrize("name", NAMES)
def test_float32_logits_agree_with_transformers(golden_folder, name):
    """Within 2e-5 absolute, on logits of deviation 1 and largest magnitude 3 to 5."""
    expected = np.load(golden_folder / name / "expected.npz")
    logits = reference_logits(load(golden_folder / name), expected["tokens"])
    assert logits.dtype == np.float32
    assert 0.9 < expected["logits"].std() < 1.2
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=2e-5)


def test_logprobs_are_normalised_logits(golden_folder):
    model, tokens = load(golden_folder / "plain"), np.load(golden_folder / "plain" / "expected.npz")["tokens"]
    logits, logprobs = reference_logits(model, tokens), reference_logprobs(model, tokens)
    np.testing.assert_allclose(np.exp(logprobs.astype(np.float64)).sum(axis=-1), 1, rtol=0, atol=1e-5)
    np.testing.assert_allclose(logprobs[:, 1:] - logprobs[:, :1], logits[:, 1:] - logits[:, :1], atol=2e-6)


def test_bfloat16_kv_changes_logits_a_little(golden_folder):
    expected = np.load(golden_folder / "like_v3" / "expected.npz")
    logits = reference_logits(load(golden_folder / "like_v3", kv_dtype="bfloat16"), expected["tokens"])
    difference = np.abs(logits - expected["logits"]).max()
    assert 1e-4 < difference < 0.1
