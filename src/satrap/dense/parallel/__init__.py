"""How a network is divided over a mesh: tensor plans, parameter shards, pipeline stages."""
