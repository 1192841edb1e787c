"""Every key of a recipe, with its type, default and meaning."""
