"""Scheduled, paid work in Dagster that is safe to retry."""

__version__ = "0.1.0"
