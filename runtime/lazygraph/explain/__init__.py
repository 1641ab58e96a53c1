"""Why two programs differ."""
