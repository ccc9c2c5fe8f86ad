"""Tags that every template has (they are builtins)."""
