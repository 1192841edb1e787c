"""Models with and without histories, see README.md."""
