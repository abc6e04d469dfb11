"""A connection to Ray: a local one that is started here, or a cluster with enough capacity.

Provides the connection as context managers, and checks that every machine sees the run's folder.
May import runbook and what is below it, and Ray.
"""
