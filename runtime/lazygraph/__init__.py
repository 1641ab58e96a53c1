"""Programs as graphs: what they are, how two differ, and why one is new."""
