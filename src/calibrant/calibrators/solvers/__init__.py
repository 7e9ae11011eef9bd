"""Numerical solvers that calibrators share."""
