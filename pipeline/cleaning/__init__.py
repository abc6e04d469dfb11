"""elmwright.pipeline.cleaning."""
