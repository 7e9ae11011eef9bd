"""What pytest leaves out when it looks for doctests."""

collect_ignore = ["watched_training.py"]  # importing it registers a recipe
