"""Task decorators: `@task.taskq`."""
