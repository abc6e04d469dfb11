"""elmwright.pipeline.storage.disk."""
