"""Source files become documents: find them, cut them into tasks, decompress, decode, parse.

Hands on `Record`: the text of a document, or the reason why there is none. Damaged input gives a
record with a problem, never a crash. May import format and what is below it.
"""
