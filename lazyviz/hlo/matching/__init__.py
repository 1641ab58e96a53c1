"""Which node of one graph is which node of another: a near-linear matching in tiers."""

from lazyviz.hlo.matching.match import match
from lazyviz.hlo.matching.state import Matching

__all__ = ["Matching", "match"]
