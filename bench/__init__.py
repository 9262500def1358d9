"""Benchmarks: every figure is compared with raw SQL, measured in the same run on the same server."""
