"""The shard's side: rows, gradient barrier, snapshots, recovery."""
