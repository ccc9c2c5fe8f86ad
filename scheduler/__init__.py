"""Who gets which GPU, and when: requests, leases and quotas around a pure planning engine."""
