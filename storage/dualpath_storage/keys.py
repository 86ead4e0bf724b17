"""Chain keys: the identity of a block is a hash of its tokens and of everything before it.

    root    = SHA-256("dualpath-kv-root\\0" + canonical JSON of the identity)
    key(i)  = SHA-256(key(i-1) + tokens of block i as little-endian uint32),   key(-1) = root

Nothing here depends on Python's `hash` or on the environment, so processes, hosts and restarts agree.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 32


@dataclass(frozen=True)
class KVIdentity:
    """Everything that makes KV unusable elsewhere."""

    model_digest: str
    weights_id: str
    weights_version: int
    layout_digest: str
    block_tokens: int

    def root(self, tenant_salt: str = "") -> bytes:
        """The parent key of a sequence's first block. Tenants with different salts share nothing."""
        canonical = json.dumps(
            {
                "model": self.model_digest,
                "weights": self.weights_id,
                "weights_version": self.weights_version,
                "layout": self.layout_digest,
                "block_tokens": self.block_tokens,
                "tenant": tenant_salt,
            },
            separators=(",", ":"),
            sort_keys=True,
        )
        return hashlib.sha256(b"dualpath-kv-root\0" + canonical.encode()).digest()


def token_bytes(tokens: Sequence[int] | np.ndarray) -> bytes:
    """Token ids as little-endian uint32. Raises ValueError for an id outside [0, 2**32)."""
    ids = np.asarray(tokens)
    if ids.size and (ids.min() < 0 or ids.max() >= 2**32):
        raise ValueError(f"token ids lie in [{ids.min()}, {ids.max()}]: expected [0, 2**32)")
    return ids.astype("<u4").tobytes()


def next_key(parent: bytes, block: Sequence[int] | np.ndarray) -> bytes:
    """The key of a block with these tokens after `parent`."""
    return hashlib.sha256(parent + token_bytes(block)).digest()


def chain_keys(root: bytes, tokens: Sequence[int] | np.ndarray, block_tokens: int) -> list[bytes]:
    """Keys of the full blocks of `tokens`, in order; a partial last block has none."""
    return list(_walk(root, np.asarray(tokens), block_tokens))


def _walk(key: bytes, ids: np.ndarray, block_tokens: int) -> Iterator[bytes]:
    for start in range(0, ids.size - block_tokens + 1, block_tokens):
        key = next_key(key, ids[start : start + block_tokens])
        yield key
