"""What people do with a finished model: embed, score, find neighbours, evaluate, feed scikit-learn.

Takes the name of any MODEL and produces files, tables or arrays. May import training and what is
below it, and torch. `embed.py` also imports Ray, to use several cores.
"""
