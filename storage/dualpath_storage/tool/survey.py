"""What is in a store, from the blocks' headers alone."""

from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import partial

from dualpath_storage.block_format import HEADER_BYTES, BlockHeader
from dualpath_storage.medium import Medium
from dualpath_storage.tool.blocks import Damage, header_of, in_threads, keys_of


@dataclass(frozen=True)
class Entry:
    """A block that says what it is."""

    key: bytes
    parent: bytes
    size_bytes: int
    layout: str
    layers: int


@dataclass
class LayoutCount:
    """The blocks of one layout; `layout` is its digest, in hex."""

    layout: str
    layers: int
    block_bytes: int
    blocks: int


@dataclass(frozen=True)
class Survey:
    """A store as a whole. `depth_blocks` is the longest chain; a root has no stored parent, a leaf no stored child."""

    blocks: int
    size_bytes: int
    roots: int
    leaves: int
    depth_blocks: int
    layouts: tuple[LayoutCount, ...]
    damaged_headers: tuple[Damage, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "blocks": self.blocks,
            "bytes": self.size_bytes,
            "roots": self.roots,
            "leaves": self.leaves,
            "depth_blocks": self.depth_blocks,
            "layouts": [asdict(layout) for layout in self.layouts],
            "damaged_headers": [bad.as_json() for bad in self.damaged_headers],
        }


def entries(medium: Medium) -> Generator[Entry | Damage]:
    """Every block that is there, in no particular order."""
    with in_threads(partial(_entry, medium), keys_of(medium)) as found:
        yield from (entry for entry in found if entry is not None)


def survey(medium: Medium) -> Survey:
    """Read every header. Raises StoreError."""
    parents: dict[bytes, bytes] = {}
    layouts: dict[str, LayoutCount] = {}
    damaged: list[Damage] = []
    size_bytes = 0
    for entry in entries(medium):
        if isinstance(entry, Damage):
            damaged.append(entry)
            continue
        parents[entry.key] = entry.parent
        size_bytes += entry.size_bytes
        empty = LayoutCount(entry.layout, entry.layers, entry.size_bytes - HEADER_BYTES, 0)
        layouts.setdefault(entry.layout, empty).blocks += 1
    return Survey(
        blocks=len(parents),
        size_bytes=size_bytes,
        roots=sum(parent not in parents for parent in parents.values()),
        leaves=len(parents.keys() - set(parents.values())),
        depth_blocks=_depth(parents),
        layouts=tuple(sorted(layouts.values(), key=lambda layout: -layout.blocks)),
        damaged_headers=tuple(damaged),
    )


def _entry(medium: Medium, key: bytes) -> Entry | Damage | None:
    header = header_of(medium, key)
    if not isinstance(header, BlockHeader):
        return header
    size_bytes = HEADER_BYTES + header.payload_bytes
    return Entry(key, header.parent, size_bytes, header.layout_digest.hex(), len(header.layer_sums))


def _depth(parents: dict[bytes, bytes]) -> int:
    """Blocks of the longest chain. Without recursion: chains have thousands of blocks."""
    depths: dict[bytes, int] = {}
    for key in parents:
        path = []
        at = key
        while at in parents and at not in depths:
            depths[at] = 0  # a block that is its own ancestor, which no chain key is, ends the walk
            path.append(at)
            at = parents[at]
        above = depths.get(at, 0)
        depths.update((step, above + count) for count, step in enumerate(reversed(path), 1))
    return max(depths.values(), default=0)
