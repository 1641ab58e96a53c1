"""Which node of one graph is which node of another: a near-linear matching in tiers."""

from lazygraph.match.state import Matching
from lazygraph.match.strategy import match

__all__ = ["Matching", "match"]
