"""elmwright.pipeline.build.stages."""
