"""Who people are, which organization they belong to, and what they may do."""
