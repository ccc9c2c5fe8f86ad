"""The users' command line; it speaks to the API and imports nothing else of the portal."""
