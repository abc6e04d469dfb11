"""elmwright.jobs.rundir."""
