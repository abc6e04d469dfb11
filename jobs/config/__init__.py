"""The run config: one TOML file becomes one frozen `RunConfig`, or one sentence about the mistake.

`sections.py` has the settings and what may change on resume, `toml_file.py` reads them,
`explain_settings.py` explains them, `recipes/` has the configs we ship. May import
terminal and what is below it.
"""
