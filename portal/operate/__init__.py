"""Running Corral: all processes with embedded servers, first operator, demo data."""
