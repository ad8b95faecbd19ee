"""Shipped to users: pytest plugin, metered provider, fault proxy."""
