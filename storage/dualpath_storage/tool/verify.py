"""Read every block of a store and name those that are damaged."""

from dataclasses import dataclass, field

from tqdm import tqdm

from dualpath_storage.medium import Medium
from dualpath_storage.tool.blocks import BlockReader, Damage, in_threads, keys_of


@dataclass
class Verified:
    """The outcome. `deleted` of the damaged blocks are gone; a block that only could not be read is kept."""

    blocks: int = 0
    size_bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    deleted: int = 0

    def as_json(self) -> dict[str, object]:
        damaged = [bad.as_json() for bad in self.damaged]
        return {"blocks": self.blocks, "bytes": self.size_bytes, "damaged": damaged, "deleted": self.deleted}


def verify(medium: Medium, *, delete: bool) -> Verified:
    """Everything but the tokens is verified; `delete` removes what is damaged. Raises StoreError.

    A damaged block is read again before it goes, since a writer may have replaced it meanwhile.
    """
    keys = keys_of(medium)
    reader = BlockReader(medium)
    found = Verified()

    def check(key: bytes) -> int | Damage | None:
        block = reader.read(key)
        return block if block is None or isinstance(block, Damage) else block.size_bytes

    with tqdm(total=len(keys), desc="verify", unit="block", disable=None) as bar, in_threads(check, keys) as blocks:
        for block in blocks:
            bar.update()
            if isinstance(block, Damage):
                found.damaged.append(block)
            elif block is not None:
                found.blocks += 1
                found.size_bytes += block
    for bad in found.damaged if delete else ():
        again = reader.read(bad.key)
        if isinstance(again, Damage) and again.certain:
            medium.delete(bad.key)
            found.deleted += 1
    return found
