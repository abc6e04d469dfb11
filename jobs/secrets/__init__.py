"""elmwright.jobs.secrets."""
