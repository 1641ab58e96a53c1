"""Views that answer clicks; each has a static twin for notebooks without a kernel."""
