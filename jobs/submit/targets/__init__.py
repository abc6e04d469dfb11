"""elmwright.jobs.submit.send.targets."""
