"""elmwright.jobs.training."""
