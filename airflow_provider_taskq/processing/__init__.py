"""Handling tasks in plain Python: workers, composites of steps, readers; on top of the queue, without Airflow or Spark."""
