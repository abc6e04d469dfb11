"""The residual biLM and the ELMo layer; reads and writes the bilm format."""
