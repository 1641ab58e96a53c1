"""Drawings of programs and of their differences: data to boxes, layout, SVG and panels."""
