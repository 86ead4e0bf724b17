"""Replaying traces: `dualpath-replay`, and the check that runs agree."""
