"""elmwright.pipeline.format."""
