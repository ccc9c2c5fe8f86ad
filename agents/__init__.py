"""The agent that runs on each GPU node."""

__version__ = "0.1.0"
