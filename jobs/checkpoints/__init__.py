"""elmwright.jobs.checkpoints."""
