"""The table of all routes."""

from wkvm.gateway.calls import Route

ROUTES: tuple[Route, ...] = ()
