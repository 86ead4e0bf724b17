"""An engine group of several processes: the leader sends each call to its followers, and all make it together."""
