"""Lowering: a graph of torch operations becomes one StableHLO module."""
