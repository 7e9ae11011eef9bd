"""Judge the five papers' claims by our runs."""
