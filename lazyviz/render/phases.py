"""The parts of a cell's time: names, meanings and colours."""

from __future__ import annotations

# In the order in which they are drawn.
MEANINGS = {
    "python": "the program's own time, in which no op was recorded",
    "trace": "recording ops",
    "dispatch": "barriers beside their waits: collecting the graph, handing it over",
    "lower": "waiting while the graph became StableHLO",
    "compile": "waiting for XLA, or for an executable from disk",
    "peek": "computing values to show them",
    "transfer": "copying between host and device",
    "fallback": "ops without a lowering, on the CPU",
    "execute": "waiting for the device",
}
PHASES = tuple(MEANINGS)
COLOURS = {
    "python": "#c3cad4",
    "trace": "#8b97a8",
    "dispatch": "#5d6878",
    "lower": "#e8c670",
    "compile": "#d99a3d",
    "peek": "#dc9aea",
    "transfer": "#75bdb1",
    "fallback": "#d17f62",
    "execute": "#5b86d6",
}
