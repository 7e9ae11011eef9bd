"""Act on predictions: thresholds and sets with a guarantee, and changed priors."""
