"""Triton kernels of layers."""
