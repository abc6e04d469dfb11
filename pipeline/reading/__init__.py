"""elmwright.pipeline.reading."""
