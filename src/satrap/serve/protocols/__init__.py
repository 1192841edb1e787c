"""Formats of requests and answers: JSON, Arrow, Open Inference Protocol."""
