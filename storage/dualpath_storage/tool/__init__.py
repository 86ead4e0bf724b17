"""`dualpath-store`: look at, check, thin out and copy stores of KV blocks, whatever their layouts."""
