"""The server's side: sessions, order, limits and the journal; a handler does the work."""
