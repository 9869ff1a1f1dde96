"""Word vectors: lookup, neighbors, analogies, files."""
