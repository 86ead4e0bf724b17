"""Using a cluster from a program: sessions, generations, many at once."""

from dualpath_jax.rollout.client import Client, Session
from dualpath_jax.rollout.generation import Generation, RequestTimings

__all__ = ["Client", "Generation", "RequestTimings", "Session"]
