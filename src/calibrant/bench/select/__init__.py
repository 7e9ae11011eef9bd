"""Choose by validation figures: tune settings, and compare combinations."""
