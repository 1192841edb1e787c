"""Commands that train, or act on a run that trains."""
