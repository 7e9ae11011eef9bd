"""Choosing by validation figures: tuning of settings, search of combinations."""
