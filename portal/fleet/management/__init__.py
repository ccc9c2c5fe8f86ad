"""Management commands of the fleet."""
