"""A TCP proxy that counts messages and, at the n-th one, stops the world and lets a test strike.

It stands between a client and an upstream (PostgreSQL, a provider), so that a crash can come at every message
from outside and the product needs no hooks. It speaks no TLS.
"""

from dagster_idempotent.testing.fault_proxy.plan import Counts, Direction, When
from dagster_idempotent.testing.fault_proxy.proxy import FaultProxy

__all__ = ["Counts", "Direction", "FaultProxy", "When"]
