"""Benchmarks of the runtime against its peers: `python -m benchmarks` lists them.

Each peer runs in a process of its own, and the peers take turns, round after round, so that a
busy machine is busy for all of them. What is timed stands in `micro.py` and `bert.py`.
"""
