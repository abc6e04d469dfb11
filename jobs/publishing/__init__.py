"""A checkpoint becomes a bundle, a bundle becomes a version, and a version gets an alias.

Export reads the bundle back and compares it with the trained model before it gets its name. The
gate refuses a version that is worse. May import using and what is below it, and torch.
"""
