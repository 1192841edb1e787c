"""The run folder: what a run writes, and how it starts and resumes."""
