"""From columns to ids and numbers: hashing, transforms, times, and their statistics."""
