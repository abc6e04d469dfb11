"""elmwright.jobs.terminal."""
