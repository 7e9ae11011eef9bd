"""Groups of rows: read them from a file, compute their figures, test each for a gap."""
