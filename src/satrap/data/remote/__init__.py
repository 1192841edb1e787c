"""Data loaders in processes of their own: the server that reads, and the client that trains."""
