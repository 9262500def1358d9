"""The section `pressure`: queues under the shapes of the public benchmark of job queues on PostgreSQL."""
