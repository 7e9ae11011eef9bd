"""Replicate five calibration papers: suites, claims, published figures, results."""
