"""The state of a run: cursors, snapshots, network files, the best weights."""
