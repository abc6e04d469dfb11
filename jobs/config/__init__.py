"""elmwright.jobs.config.sections."""
