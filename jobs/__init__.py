"""A run config becomes corpus, checkpoints, bundle and registry version. The command and the API.

Rooms from top to bottom: api, cli, serving.py, submit, planning, stages, upkeep, publishing, using,
training, registry, tracking, bundles, checkpoints, cluster, runbook, rundir, config, terminal,
environment, secrets. Each may import those below it, `model` and `pipeline`.
"""
