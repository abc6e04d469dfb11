"""Training: `driver` starts and watches the processes, `loop` is what each of them runs.

Takes a corpus and a config, and hands on checkpoints, the journal and `result.json`. May import
registry and what is below it. `driver` may import `loop`, and never the other way round.
"""
