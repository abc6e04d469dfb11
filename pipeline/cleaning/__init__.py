"""Documents become tokenised sentences: repair, split, tokenise once, then judge by the rules.

Hands on `Cleaned`, a batch of documents with the verdict on each, and a `Funnel` that accounts for
every word removed. Pure functions without files or Ray. May import reading and what is below it.
"""
