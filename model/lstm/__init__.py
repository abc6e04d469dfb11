"""The projected LSTM: one window of rows in both directions, forward and backward.

Hands on `projected.py: projected_lstm`. May import the kernels and `precision.py`.
"""
