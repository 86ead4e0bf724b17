"""Engine groups: the contract (`base`), the Flax engine, the fake one, their oracle, and host buffers."""
