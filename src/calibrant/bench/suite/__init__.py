"""Suites: reading a suite file, expanding it into runs, and each run's key."""
