"""elmwright.jobs.training.loop."""
