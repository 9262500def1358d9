"""The message queue provider for Airflow's `MessageQueueTrigger`."""
