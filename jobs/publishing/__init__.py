"""elmwright.jobs.publishing."""
