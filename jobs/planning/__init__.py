"""What a config will cost and whether it can work, before anything is started: check and init.

Gives facts as data and as lines of text. Only `measuring.py`, `operations.py` and `device_bench.py`
compute with torch. May import stages and what is below it.
"""
