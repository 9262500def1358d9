"""Composites: handlers of named steps with dependencies, which run in a worker's threads or as a Spark plan."""

from airflow_provider_taskq.worker.composite.composite import Composite
from airflow_provider_taskq.worker.composite.steps import Step, StepMode

__all__ = ["Composite", "Step", "StepMode"]
