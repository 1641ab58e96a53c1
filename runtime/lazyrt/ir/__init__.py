"""The intermediate representation: interned nodes, graphs, fingerprints."""
