"""Number formats, fused optimizer steps and compiled blocks."""
