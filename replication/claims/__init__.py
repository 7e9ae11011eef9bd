"""What the five papers claim, judged by our runs."""
