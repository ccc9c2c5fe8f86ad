"""`corral`: the users' command line. It speaks to /api/v1/ and knows nothing else of the portal."""
