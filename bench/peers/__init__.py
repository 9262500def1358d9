"""Peers: other queues on PostgreSQL, driven beside TaskQ in one run. Each runs as a program of its own."""
