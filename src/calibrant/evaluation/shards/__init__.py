"""Evaluation of shards: sums are made where the rows lie, and merged in the order of the paths."""
