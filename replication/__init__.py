"""The five papers put to the test with calibrant: suites, claims, published figures, results."""
