"""Keys agree wherever they must, and differ wherever KV may not be shared."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath_storage import KVIdentity, KVLayout, chain_keys, next_key, token_bytes

IDENTITY = KVIdentity("model", "weights", 3, "layout", 4)
TOKENS = list(range(5, 25))

SCRIPT = """
from dualpath_storage import KVIdentity, KVLayout, chain_keys
layout = KVLayout.mla(layers=2, latent=8, rope=4, dtype="bfloat16", block_tokens=4)
root = KVIdentity("model", "weights", 3, layout.digest.hex(), 4).root("tenant")
print(layout.digest.hex(), *(key.hex() for key in chain_keys(root, range(5, 25), 4)))
"""


def keys_of(identity: KVIdentity, salt: str = "") -> list[bytes]:
    return chain_keys(identity.root(salt), TOKENS, identity.block_tokens)


def test_processes_with_other_hash_seeds_agree() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 6


def test_keys_have_not_changed() -> None:
    """A change of these means that no store out there has a hit any more."""
    assert [key.hex()[:16] for key in keys_of(IDENTITY, "tenant")[:2]] == ["f2204c2c86522b08", "7bbaf0a77e7f3c20"]


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(IDENTITY, model_digest="another"),
        dataclasses.replace(IDENTITY, weights_id="another"),
        dataclasses.replace(IDENTITY, weights_version=4),
        dataclasses.replace(IDENTITY, layout_digest="another"),
        dataclasses.replace(IDENTITY, block_tokens=2),
    ],
)
def test_each_part_of_the_identity_changes_every_key(other: KVIdentity) -> None:
    assert not set(keys_of(IDENTITY)) & set(keys_of(other))


def test_tenants_share_nothing() -> None:
    tenants = [set(keys_of(IDENTITY, salt)) for salt in ("", "a", "b")]
    assert len(set.union(*tenants)) == sum(len(keys) for keys in tenants)


def test_a_key_stands_for_everything_before_it() -> None:
    changed = keys_of(IDENTITY)
    tokens = [99, *TOKENS[1:]]
    assert not set(changed) & set(chain_keys(IDENTITY.root(), tokens, 4))


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    more=st.lists(st.integers(0, 2**32 - 1), max_size=20),
    block_tokens=st.integers(1, 7),
)
def test_a_longer_sequence_keeps_the_keys_of_its_beginning(
    tokens: list[int], more: list[int], block_tokens: int
) -> None:
    root = IDENTITY.root()
    keys = chain_keys(root, tokens, block_tokens)
    assert len(keys) == len(tokens) // block_tokens, "a partial block has no key"
    assert chain_keys(root, tokens + more, block_tokens)[: len(keys)] == keys
    for key, parent, start in zip(keys, [root, *keys], range(0, len(tokens), block_tokens), strict=False):
        assert key == next_key(parent, tokens[start : start + block_tokens])


def test_the_integer_type_of_tokens_does_not_matter() -> None:
    root = IDENTITY.root()
    for dtype in (np.int32, np.int64, np.uint32, np.uint16, ">i4"):
        assert chain_keys(root, np.array(TOKENS, dtype), 4) == chain_keys(root, TOKENS, 4)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_outside_32_bits_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match=rf"token ids lie in \[.*{token}.*\]: expected \[0, 2\*\*32\)"):
        token_bytes(np.array([token, 1]))


def test_layouts_share_a_digest_only_where_their_bytes_mean_the_same() -> None:
    layouts = [
        KVLayout.mla(layers=layers, latent=latent, rope=rope, dtype=dtype, block_tokens=block_tokens)
        for layers in (2, 3)
        for latent, rope in ((8, 4), (4, 8))
        for dtype in ("bfloat16", "float16", "float32")
        for block_tokens in (4, 8)
    ]
    assert len({layout.digest for layout in layouts}) == len(layouts)
    assert KVLayout.mla(layers=2, latent=8, rope=4, dtype="float16", block_tokens=4).digest in {
        layout.digest for layout in layouts
    }


def test_a_layout_counts_its_bytes() -> None:
    layout = KVLayout.mla(layers=3, latent=512, rope=64, dtype="bfloat16", block_tokens=64)
    assert layout.token_layer_bytes == 1152
    assert layout.block_bytes == 3 * 64 * 1152
    assert layout.layer_span(1, 3) == slice(64 * 1152, 3 * 64 * 1152)
    assert [layout.blocks_of(tokens) for tokens in (0, 1, 64, 65)] == [0, 1, 1, 2]
    with pytest.raises(ValueError, match=r"layers \[2, 4\): expected a range within \[0, 3\)"):
        layout.layer_span(2, 4)
