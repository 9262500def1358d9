"""Provider metadata. Every Airflow process imports this module, so it imports nothing else."""

from typing import Any

_PACKAGE = "airflow_provider_taskq"
_INTEGRATION = "TaskQ"
_OPERATORS = ("push", "process", "complete", "release", "revive", "expire", "purge", "ticks", "health", "spark_submit")


def get_provider_info() -> dict[str, Any]:
    """Return the metadata: name, connection type, options, and the modules of each kind."""
    return {
        "package-name": "airflow-provider-taskq",
        "name": _INTEGRATION,
        "description": "A durable work queue in PostgreSQL: push, gate, claim and complete tasks from DAGs and Spark.",
        "connection-types": [_connection_type()],
        "hooks": _modules("hooks.taskq"),
        "operators": _modules(*(f"operators.{name}" for name in _OPERATORS)),
        "sensors": _modules("sensors.topic", "sensors.state", "sensors.juncture"),
        "triggers": _modules("triggers.topic", "triggers.state", "triggers.juncture", "triggers.event"),
        "task-decorators": [{"name": "taskq", "class-name": f"{_PACKAGE}.decorators.taskq.taskq_task"}],
        "plugins": [{"name": "taskq", "plugin-class": f"{_PACKAGE}.plugins.taskq.TaskQPlugin"}],
        "cli": [f"{_PACKAGE}.cli.airflow.get_cli_commands"],
        "queues": [f"{_PACKAGE}.queues.taskq.TaskQMessageQueueProvider"],
        "notifications": [f"{_PACKAGE}.notifications.taskq.TaskQNotifier"],
        "extra-links": [f"{_PACKAGE}.links.topic.TaskQTopicLink"],
        "asset-uris": [_asset_uris()],
        "config": {"taskq": _options()},
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"{_PACKAGE}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]


def _asset_uris() -> dict[str, Any]:
    return {
        "schemes": ["taskq"],
        "handler": f"{_PACKAGE}.assets.taskq.sanitize_uri",
        "factory": f"{_PACKAGE}.assets.taskq.create_asset",
        "to_openlineage_converter": f"{_PACKAGE}.assets.taskq.convert_asset_to_openlineage",
    }


def _options() -> dict[str, Any]:
    return {
        "description": "TaskQ, the work queue in PostgreSQL.",
        "options": {
            "conn_ids": {
                "description": "Comma-separated ids of the Airflow connections whose queues the TaskQ page shows.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "taskq_default,warehouse",
                "default": "taskq_default",
            },
            "metric_topics": {
                "description": "Comma-separated patterns of the topics that metrics name. All other topics share "
                "the tag `other`, which bounds the number of time series.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "orders,flights-*",
                "default": "*",
            },
        },
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "taskq",
        "hook-class-name": f"{_PACKAGE}.hooks.taskq.TaskQHook",
        "hook-name": "TaskQ",
        "conn-fields": {
            "sslmode": {
                "label": "SSL mode",
                "description": "How libpq requests and verifies the server's certificate",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full", None],
                },
            },
            "connect_timeout": {
                "label": "Connect timeout",
                "description": "Seconds to wait for the server (default 10)",
                "schema": {"type": ["integer", "null"], "minimum": 1},
            },
            "application_name": {
                "label": "Application name",
                "description": "The name in pg_stat_activity (default airflow-taskq)",
                "schema": {"type": ["string", "null"]},
            },
            "listen": {
                "label": "Listen for notifications",
                "description": "Whether the triggerer receives notifications, and checks a topic "
                "immediately after a change (default off). Leave it off behind a transaction pooler.",
                "schema": {"type": ["boolean", "null"]},
            },
        },
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"schema": "Database"},
            "placeholders": {"host": "localhost", "port": "5432", "schema": "taskq"},
        },
    }
