"""The training loop of one process: blocks, batches, loss, exchange, update, evaluation.

`train.py: train` takes its rank and its device, so a notebook or torchrun can call it too. Passes a
`Snapshot` to the checkpoint writer and makes a `Score` of each held-out set. May import the rooms
below training, and torch. It must not reach Ray or MLflow, not even through another room.
"""
