"""Calibrators of logits, one a file, each named by its canonical name."""
