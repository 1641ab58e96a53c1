"""What the runtime tells the outside: events, metrics, the live tensor report."""
