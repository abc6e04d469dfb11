"""elmwright.jobs.registry.contract."""
