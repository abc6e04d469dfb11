"""The format of a bundle, the folder that is published: its files, digests and signature.

Hands on a verified model folder on this disk, wherever it was stored. Making a bundle is the work
of publishing. May import checkpoints and what is below it.
"""
