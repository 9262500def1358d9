"""The demonstration: a private PostgreSQL, a real Airflow, and the flights that left New York in 2013."""
