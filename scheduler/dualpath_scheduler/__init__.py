"""Scheduling of a dual-path cluster: policies, the gRPC service, workloads and reports. No JAX."""
