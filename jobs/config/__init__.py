"""The run config: a TOML file becomes a frozen `RunConfig`, or one sentence about the mistake.

`sections.py` has the settings and what may change on resume, `toml_file.py` reads them,
`explain_settings.py` explains them, `recipes/` has the shipped configs. May import terminal and
what is below it.
"""
