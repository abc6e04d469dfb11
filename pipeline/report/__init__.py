"""elmwright.pipeline.report.report."""
