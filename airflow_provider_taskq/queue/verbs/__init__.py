"""The verbs of the queue, one module for each file of SQL functions that it calls."""
