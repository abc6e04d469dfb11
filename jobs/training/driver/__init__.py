"""elmwright.jobs.training.driver."""
