"""Reading what other tools wrote: metrics reports, debug logs, graph dumps, XLA dump folders.

Nothing here needs torch, jax or lazyrt: evidence is read where it lies.
"""
