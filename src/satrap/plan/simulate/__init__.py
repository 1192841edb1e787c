"""A training of many hosts played through before they exist: what each piece of work costs, and a simulation."""
