"""What makes a network obey the lanes of a spec. No JAX, so that it runs wherever the network is looked after."""
