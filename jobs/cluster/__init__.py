"""A connection to Ray: a local one that is started here, or a cluster with enough capacity.

Hands on nothing but the connection, as context managers. Checks that every machine sees the run's
folder. May import runbook and what is below it, and Ray.
"""
