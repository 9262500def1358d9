"""Benchmarks: every figure beside the limit of raw SQL, measured in the same run on the same server."""
