"""Compiling, caching, running: graph → executable → value."""
