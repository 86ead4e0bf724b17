"""Every hop of a request's KV, with the cards and memories that it passes (paper, data flow and bottleneck table).

| hop | from → to | passes |
| --- | --- | --- |
| `storage_to_prefill` | storage → prefill DRAM | SNIC; memory |
| `tier_to_prefill`, `tier_to_decode` | a node's DRAM tier → its buffer | memory, read and written |
| `prefill_load` | prefill DRAM → prefill HBM | memory; CNIC, out and in |
| `decode_load` | decode DRAM → prefill HBM | memory, CNIC out; the prefill engine's CNIC in |
| `prefill_to_decode` | prefill HBM → decode DRAM | CNIC out; the decode engine's CNIC in, memory |
| `storage_to_decode` | storage → decode DRAM | SNIC; memory |
| `insert` | decode DRAM → decode HBM | memory; CNIC, out and in |
| `export` | decode HBM → decode DRAM | CNIC, out and in; memory |
| `persist` | decode DRAM → storage | memory; SNIC |
"""

from typing import final

from dualpath_scheduler.simulator.nodes import Node, Request

HOPS = (
    "storage_to_prefill",
    "storage_to_decode",
    "tier_to_prefill",
    "tier_to_decode",
    "prefill_load",
    "decode_load",
    "prefill_to_decode",
    "insert",
    "export",
    "persist",
)


@final
class Traffic:
    """Sends KV along its hops and counts it; `bytes` has the total of each hop."""

    def __init__(self, token_bytes: int, read_bytes_per_s: float, read_parts: int = 1) -> None:
        self._token_bytes = token_bytes
        self._read_parts = read_parts
        self._read_bytes_per_s = read_bytes_per_s
        self.bytes = dict.fromkeys(HOPS, 0)

    def read(self, now: float, request: Request) -> tuple[float, float]:
        """Storage to DRAM on both sides, each its share; returns when the first part of both is there, and the last.

        A request alone does not fill a card: it has no more than so many reads under way. Read whole, it is one part.
        What a side has in its tier is copied, and is there before the rest is read.
        """
        first, last = now, now
        for node, tokens, resident, hops in (
            (request.prefill, request.prefill_side, request.prefill_resident, ("storage_to_prefill", "tier_to_prefill")),
            (request.decode, request.decode_side, request.decode_resident, ("storage_to_decode", "tier_to_decode")),
        ):
            if resident:
                copied = self._copy(now, node, resident, hops[1])
                first, last = max(first, copied), max(last, copied)
            if tokens > resident:
                count = (tokens - resident) * self._token_bytes
                self.bytes[hops[0]] += count
                through = max(node.read(now, count), now + count / self._read_bytes_per_s)
                own_s = count / min(node.snic.rate, self._read_bytes_per_s)
                first, last = max(first, through - own_s * (1 - 1 / self._read_parts)), max(last, through)
        return first, last

    def _copy(self, now: float, node: Node, tokens: int, hop: str) -> float:
        count = tokens * self._token_bytes
        self.bytes[hop] += count
        node.tier_read_bytes += count
        return node.memory.send(now, 2 * count)

    def load(self, now: float, request: Request) -> float:
        """The prefix of one batch into prefill HBM: what the decode side read from there, the rest from here."""
        token_bytes, engine, through = self._token_bytes, request.prefill_engine, now
        here = (request.computed - request.decode_side) * token_bytes
        inwards = request.prefill.cnic_write[engine]
        if here:
            self.bytes["prefill_load"] += here
            request.prefill.cnic_read[engine].send(now, here)
            through = max(request.prefill.memory.send(now, here), inwards.send(now, here))
        if request.decode_side:
            there, decode = request.decode_side * token_bytes, request.decode
            self.bytes["decode_load"] += there
            outwards = decode.cnic_read[request.decode_engine].send(now, there)
            through = max(through, decode.memory.send(now, there), outwards, inwards.send(now, there))
        return through

    def send_back(self, now: float, request: Request, tokens: int) -> float:
        """KV that the decode node lacks, after prefill (of each layer) into its DRAM."""
        count, decode = tokens * self._token_bytes, request.decode
        self.bytes["prefill_to_decode"] += count
        return max(
            request.prefill.cnic_read[request.prefill_engine].send(now, count),
            decode.cnic_write[request.decode_engine].send(now, count),
            decode.memory.send(now, count),
        )

    def insert(self, now: float, request: Request) -> float:
        """The whole prompt's KV into decode HBM."""
        count, decode = request.prompt * self._token_bytes, request.decode
        self.bytes["insert"] += count
        return max(
            decode.memory.send(now, count),
            decode.cnic_read[request.decode_engine].send(now, count),
            decode.cnic_write[request.decode_engine].send(now, count),
        )

    def persist(self, now: float, request: Request, *, exported: int, stored: int) -> None:
        """Tokens generated come out of HBM; tokens of blocks that are complete now go to storage."""
        decode = request.decode
        out, kept = exported * self._token_bytes, stored * self._token_bytes
        self.bytes["export"] += out
        self.bytes["persist"] += kept
        decode.cnic_read[request.decode_engine].send(now, out)
        decode.cnic_write[request.decode_engine].send(now, out)
        decode.memory.send(now, out + kept)
        decode.snic_write.send(now, kept)
