"""Which node of one graph is which node of another: a near-linear matching in tiers."""

from lazygraph.matching.match import match
from lazygraph.matching.state import Matching

__all__ = ["Matching", "match"]
