"""The worker's side of shard servers: lookups, updates, snapshots and counters."""
