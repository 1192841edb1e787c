"""Models of interactions between features."""
