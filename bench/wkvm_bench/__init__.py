"""Benchmarks, behind ``wkvm bench``: ratios of wkvm to a peer, both measured in the same run."""
