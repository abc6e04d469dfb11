"""elmwright.jobs.planning.plan."""
