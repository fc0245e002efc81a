"""The binary protocol's server: sockets, tenants, limits, drain."""
