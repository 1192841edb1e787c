"""A model of histories beside models without, see README.md."""
