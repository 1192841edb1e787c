"""The account of a run: statistics, throughput, running metrics, observers."""
