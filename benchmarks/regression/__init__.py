"""Regression compared with plain PyTorch, see README.md."""
