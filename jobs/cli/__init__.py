"""elmwright.jobs.cli.command."""
