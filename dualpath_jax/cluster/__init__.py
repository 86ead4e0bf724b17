"""Nodes: what a prefill and a decode node do with the requests that the scheduler assigns to them."""
