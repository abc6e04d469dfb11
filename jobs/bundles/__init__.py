"""elmwright.jobs.bundles."""
