"""Finds what occurs twice: exact copies, near-copies, and text shared with evaluation sets.

Hands on sorted tables of keys and of the rows that lose, in files that are read by range, so that
no process holds the whole corpus. May import cleaning and what is below it.
"""
