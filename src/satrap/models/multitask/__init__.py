"""Models with several labels: MMoE, PLE and their experts."""
