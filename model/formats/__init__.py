"""elmwright.model.formats."""
