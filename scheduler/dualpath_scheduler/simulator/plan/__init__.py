"""`dualpath-plan`: what limits a cluster's shape, by the paper's table, and which shape the simulator finds best."""
