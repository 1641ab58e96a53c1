"""Pure functions from data to text, DOT, SVG and HTML."""
