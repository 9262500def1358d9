"""TaskQ: a work queue in PostgreSQL for Apache Airflow and Apache Spark."""

__version__ = "0.1.0"
