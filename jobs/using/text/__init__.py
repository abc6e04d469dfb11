"""What the commands read: lines, running text, pairs and marked sentences, as a model's own words.

Takes files, pipes and arguments. Hands on lists of words, and prints them for `elmwright tokenize`.
May import what `using/` may, but neither torch nor the rest of `using/`.
"""
