"""KV blocks and where they are kept: the layout, the chain keys, the block stores and the prefix index. No JAX."""

from dualpath_storage.faulty import Faults, FaultyStore
from dualpath_storage.index import PrefixIndex
from dualpath_storage.keys import KEY_BYTES, KVIdentity, chain_keys, next_key, token_bytes
from dualpath_storage.layout import KVField, KVLayout
from dualpath_storage.memory import MemoryStore
from dualpath_storage.open import open_store
from dualpath_storage.posix import PosixStore
from dualpath_storage.store import BlockRead, BlockResult, BlockStore, BlockWrite, Status, StoredBlock, StoreError
from dualpath_storage.tier import DramTier

__all__ = [
    "KEY_BYTES",
    "BlockRead",
    "BlockResult",
    "BlockStore",
    "BlockWrite",
    "DramTier",
    "Faults",
    "FaultyStore",
    "KVField",
    "KVIdentity",
    "KVLayout",
    "MemoryStore",
    "PosixStore",
    "PrefixIndex",
    "Status",
    "StoreError",
    "StoredBlock",
    "chain_keys",
    "next_key",
    "open_store",
    "token_bytes",
]
