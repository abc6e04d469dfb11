"""elmwright.jobs.environment."""
