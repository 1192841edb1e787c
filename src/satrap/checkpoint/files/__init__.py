"""Files of a checkpoint on a disk or at a URL."""
