"""The client's side: requests are numbered, sent again if they are lost, and matched with their answers."""
