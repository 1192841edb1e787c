"""From a request to scores: columns, batch, network."""
