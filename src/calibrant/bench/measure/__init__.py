"""Measurements on a run's predictions and network."""
