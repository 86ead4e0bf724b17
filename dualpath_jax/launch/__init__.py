"""Starting a cluster's processes: one role by `dualpath-launch`, a whole local cluster from Python."""
