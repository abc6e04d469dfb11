"""Commands that look at runs and tidy them: runs, status, verify, prune, ui.

Reads facts from files. `prune` removes what can be rebuilt, `ui` may start an MLflow server. Only
`verify` loads torch, to look into the weights of a bundle, and Ray, to repeat training steps
(`replay.py`). May import publishing and what is below it.
"""
