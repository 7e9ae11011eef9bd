"""Independent, naive float64 versions of the metrics, and the papers' propositions.

Written from the papers' definitions with numpy, scipy and the standard library only, and
without a line of the package they are there to check. Clarity goes before speed.
"""
