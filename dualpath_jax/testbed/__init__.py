"""Real processes on emulated networks, and what is measured there."""
