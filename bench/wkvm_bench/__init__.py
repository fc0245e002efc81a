"""Benchmarks, behind ``wkvm bench``."""
