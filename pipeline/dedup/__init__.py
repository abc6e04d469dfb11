"""elmwright.pipeline.dedup.keys."""
