"""The agent of one lane in one direction, and its successors."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from dualpath_jax.transfer.nixl_agent import NixlAgent, PeerGoneError

SETTLE_S = 0.1
"""How long a write that is to end may take to do so by itself, before the agent that carries it is stopped."""


@final
class NixlLane:
    """Makes the agent when it is first needed, and another one when that has ended."""

    def __init__(self, options: Mapping[str, str], on_end: Callable[[NixlAgent], None] = lambda agent: None) -> None:
        self._options = dict(options)
        self._on_end = on_end
        self._agent: NixlAgent | None = None
        self._peers: dict[str, str] = {}
        self._closed = False
        self.replaced = 0
        """Agents that had to go before the lane did."""

    def agent(self, views: Sequence[memoryview]) -> NixlAgent:
        """The agent, which knows the memory of these views. Raises RuntimeError where UCX does not start,
        and PeerGoneError once closed."""
        if self._closed:
            raise PeerGoneError("this side is shutting down")
        if self._agent is not None and not self._agent.closed and not self._agent.cover(views):
            self.end(self._agent)
        if self._agent is None or self._agent.closed:
            self._agent = NixlAgent(self._options)
            self._agent.cover(views)
        return self._agent

    def end(self, agent: NixlAgent) -> None:
        """Stop an agent: when this returns, none of its memory is read or written by it any more."""
        if not agent.closed:
            self.replaced += 1
            agent.close()
            self._on_end(agent)

    def forget(self, name: str) -> None:
        """Drop the connection to a peer's agent."""
        if self._agent is not None and not self._agent.closed:
            self._agent.forget(name)

    def reach(self, peer: str, name: str) -> None:
        """The peer's agent has this name now; the connection to an older one is dropped."""
        before = self._peers.get(peer, name)
        self._peers[peer] = name
        if before != name:
            self.forget(before)

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        if self._agent is not None and not self._agent.closed:
            self._agent.close()
            self._on_end(self._agent)
