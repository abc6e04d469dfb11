"""Builds a corpus: runs the stages in order as Ray tasks, then writes report and manifest.

`driver.py: build_corpus` takes the settings and returns the `Manifest`. A task's output is named by
a digest of its arguments, so a killed or changed build repeats only what is missing. May import
report and what is below it. Ray is imported in `ray_tasks.py` only.
"""
