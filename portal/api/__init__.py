"""The door for programs: /api/v1/."""
