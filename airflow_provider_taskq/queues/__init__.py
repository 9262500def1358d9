"""Message queues: how Airflow's `MessageQueueTrigger` finds TaskQ."""
