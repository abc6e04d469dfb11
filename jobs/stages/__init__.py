"""elmwright.jobs.stages."""
