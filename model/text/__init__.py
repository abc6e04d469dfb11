"""What a model reads: raw sentences and lists of words become the words of its corpus.

Takes whatever a user gives as a batch, and a model folder's tokenisation. Hands on lists of words,
and which pieces belong to which word. May import pipeline, but neither torch nor the rest of
`model/`.
"""
