"""What the sweep over `op_db` knows of single ops, each entry with its reason."""

from __future__ import annotations

RANDOM: dict[str, str] = {}
UNDEFINED: dict[str, str] = {}
LOOSE: dict[str, float] = {}
