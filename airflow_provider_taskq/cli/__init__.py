"""The command line: `taskq` by itself, and `airflow taskq` on Airflow's connections."""
