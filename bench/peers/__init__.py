"""Peers: other queues on PostgreSQL, measured in the same run as TaskQ. Each runs as its own program."""
