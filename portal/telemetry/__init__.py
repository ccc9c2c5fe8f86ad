"""What GPUs measured: stored, thinned, and answered as series for charts."""
