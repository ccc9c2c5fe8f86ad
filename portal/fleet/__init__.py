"""The machines we own: nodes, their GPUs, and whether they answer."""
