"""Regression beside plain PyTorch, see README.md."""
