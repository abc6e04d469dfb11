"""The four stages of a run, corpus, train, export and publish, and the workflow that runs them.

A `Stage` knows whether it is done, checks its inputs, and does its work. May import upkeep and
what is below it.
"""
