"""elmwright.jobs.tracking.tracker."""
