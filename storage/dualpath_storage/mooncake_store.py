"""Blocks in a Mooncake Store (FAST '25): the pooled memory of a cluster's nodes."""

from typing import Any, final

from dualpath_storage.block_format import HEADER_BYTES
from dualpath_storage.layout import KVLayout
from dualpath_storage.medium_store import MediumStore
from dualpath_storage.mooncake_master import address_text, reach_master
from dualpath_storage.mooncake_medium import MooncakeMedium
from dualpath_storage.mooncake_url import MooncakeLocation, parse_mooncake_url
from dualpath_storage.store import StoreError


@final
class MooncakeStore(MediumStore):
    """`mooncake://host:port/prefix?segment_bytes=BYTES&replicas=N&admin=host:port&metadata=URL`, the master's address.

    While it is open, the store lends `segment_bytes` of this process's memory to the cluster (none by default), in
    which any client's blocks are put; several nodes of one cluster each lend theirs, and `close` takes it back. Blocks
    are as durable as that memory: each is in `replicas` segments where there are so many, and gone with the last of
    them, or with the master, which alone knows where they are. The master evicts blocks where room is short.

    `scan` asks the master's HTTP address, `admin`, for the keys (by default port 9003 of its host, as Mooncake's).
    `metadata` is the metadata server of the cluster, where it has one; without, clients ask one another.

    Raises StoreError where the URL is wrong, the package is missing, the master does not answer, or
    the cluster refuses.
    """

    def __init__(self, url: str, layout: KVLayout, *, threads: int = 8) -> None:
        location = parse_mooncake_url(url)
        client, replicated = _connected(location)
        medium = MooncakeMedium(client, replicated, location, block_bytes=HEADER_BYTES + layout.block_bytes)
        super().__init__(medium, layout, threads=threads)
        self._url = url

    @property
    def url(self) -> str:
        return self._url


def _connected(location: MooncakeLocation) -> tuple[Any, Any]:
    """A client that is part of the cluster, and its setting for replicas."""
    try:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    except ImportError as error:
        raise StoreError(
            f"store URL {location.url!r}: Mooncake cannot be loaded ({error}): "
            "pip install dualpath-jax[mooncake], and on Debian apt-get install libibverbs1"
        ) from None
    replicated = ReplicateConfig()
    replicated.replica_num = location.replicas
    host = reach_master(location)
    client = MooncakeDistributedStore()
    code = client.setup(host, location.metadata, location.segment_bytes, 0, "tcp", "", address_text(location.master))
    if code:
        raise StoreError(
            f"store URL {location.url!r}: Mooncake refuses (error {code}): check that it is a mooncake_master's "
            f"address, that the metadata server {location.metadata} runs, and that there are {location.segment_bytes} "
            "bytes of memory to lend; its log says more"
        )
    return client, replicated
