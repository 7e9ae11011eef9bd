"""Heads: calibrators that replace a network's last layer and take its features."""
