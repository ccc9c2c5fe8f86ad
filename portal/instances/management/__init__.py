"""Management commands around instances."""
