"""Every way to run the network's step: on one device, data-parallel, sharded, in stages, or in the store."""
