"""elmwright.pipeline.build."""
