"""elmwright.jobs.upkeep."""
