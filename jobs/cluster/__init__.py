"""elmwright.jobs.cluster.connection."""
