"""Plans of a recipe: tables, network, cluster and simulated speed."""
