"""Composite steps: named steps with dependencies, one definition for a worker's threads and for a Spark plan."""

from airflow_provider_taskq.worker.composite.composite import Composite
from airflow_provider_taskq.worker.composite.definition import Mode, Step
from airflow_provider_taskq.worker.composite.engine import CompositeClosed

__all__ = ["Composite", "CompositeClosed", "Mode", "Step"]
