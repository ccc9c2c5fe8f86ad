"""The door for long-lived connections: browsers and nodes."""
