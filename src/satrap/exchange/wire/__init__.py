"""The format of ids, rows and gradients in messages: between workers, shards and embedding workers."""
