"""elmwright.model.inference."""
