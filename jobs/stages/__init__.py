"""The four stages of a run, corpus, train, export and publish, and the workflow that runs them.

A `Stage` says whether it is done, what it would refuse, and how it works. Being done is read from
its output, never from a state file. May import upkeep and what is below it.
"""
