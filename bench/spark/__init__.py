"""Spark on the queue: drains beside what is written by hand, the modes alone, cores, memory, and adbc."""
