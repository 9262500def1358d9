"""Spark on the queue: drains compared with code written by hand, single modes, cores, memory, and adbc."""
