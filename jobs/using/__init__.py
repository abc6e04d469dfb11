"""elmwright.jobs.using."""
