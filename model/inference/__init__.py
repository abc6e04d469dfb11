"""The ELMo layer for people who have a model folder: vectors of sentences, mixed or layer by layer.

`elmo.py: Elmo` takes lists of words and hands on arrays or an `ElmoOutput`. It knows no registry
and no run. May import formats and what is below it, and torch.
"""
