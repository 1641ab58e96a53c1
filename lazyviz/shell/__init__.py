"""What the shell needs: completion, displayed values, tracebacks, progress while a cell runs."""
