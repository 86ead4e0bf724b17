"""A discrete-event simulator of clusters of any size, which runs the scheduler's own policies. No JAX."""
