"""What an administrator can run about money."""
