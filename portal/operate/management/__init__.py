"""Management commands for whoever runs Corral."""
