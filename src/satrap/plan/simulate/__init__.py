"""A training of many hosts, played through before they exist: costs of the work, and a simulation."""
