"""elmwright.jobs.runbook.runbook."""
