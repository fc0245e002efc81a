"""Clients of the binary protocol: asyncio and blocking."""
