"""The story of an instance: ask, place, run, stop."""
