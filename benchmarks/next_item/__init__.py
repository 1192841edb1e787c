"""Next item among all items, see README.md."""
