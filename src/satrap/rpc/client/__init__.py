"""The client's side: requests are numbered, resent if lost, and matched with their responses."""
