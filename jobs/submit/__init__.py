"""elmwright.jobs.submit.send."""
