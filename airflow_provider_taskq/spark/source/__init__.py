"""The Spark data source `taskq`: who reads and writes for each of its modes."""
