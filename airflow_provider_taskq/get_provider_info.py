"""What Airflow reads about this provider; imported by every Airflow process, so it imports nothing."""

from typing import Any

_PACKAGE = "airflow_provider_taskq"
_INTEGRATION = "TaskQ"
_OPERATORS = ("push", "process", "complete", "release", "revive", "expire", "purge", "ticks", "health", "spark_submit")


def get_provider_info() -> dict[str, Any]:
    """The provider's name, its connection type and options, and where its parts are."""
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
    """One section's entry: the modules that hold its classes."""
    modules = [f"{_PACKAGE}.{name}" for name in names]
    return [{"integration-name": _INTEGRATION, "python-modules": modules}]


def _asset_uris() -> dict[str, Any]:
    """How assets `taskq://` are checked, made, and told to OpenLineage."""
    return {
        "schemes": ["taskq"],
        "handler": f"{_PACKAGE}.assets.taskq.sanitize_uri",
        "factory": f"{_PACKAGE}.assets.taskq.create_asset",
        "to_openlineage_converter": f"{_PACKAGE}.assets.taskq.convert_asset_to_openlineage",
    }


def _options() -> dict[str, Any]:
    """The section `[taskq]` of Airflow's configuration."""
    return {
        "description": "TaskQ, the work queue in PostgreSQL.",
        "options": {
            "conn_ids": {
                "description": "Airflow connections whose queues the TaskQ page shows, with commas between them; "
                "others do not exist for it.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "taskq_default,warehouse",
                "default": "taskq_default",
            },
            "metric_topics": {
                "description": "Topics that metrics name, as patterns with commas between them; all others are "
                "reported as `other`, so that many topics do not make many time series.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "orders,flights-*",
                "default": "*",
            },
        },
    }


def _connection_type() -> dict[str, Any]:
    """The form in which a connection of type `taskq` is entered; a `postgres` connection serves as well."""
    return {
        "connection-type": "taskq",
        "hook-class-name": f"{_PACKAGE}.hooks.taskq.TaskQHook",
        "hook-name": "TaskQ",
        "conn-fields": {
            "sslmode": {
                "label": "SSL mode",
                "description": "How the server's certificate is asked for and checked",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full", None],
                },
            },
            "connect_timeout": {
                "label": "Connect timeout",
                "description": "Seconds to wait for the server (10 unless set)",
                "schema": {"type": ["integer", "null"], "minimum": 1},
            },
            "application_name": {
                "label": "Application name",
                "description": "What pg_stat_activity shows (airflow-taskq unless set)",
                "schema": {"type": ["string", "null"]},
            },
            "listen": {
                "label": "Listen for notifications",
                "description": "Whether the triggerer listens on a second connection, and looks at once when a topic "
                "has something new (off unless set). Leave it off behind a transaction pooler.",
                "schema": {"type": ["boolean", "null"]},
            },
        },
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"schema": "Database"},
            "placeholders": {"host": "localhost", "port": "5432", "schema": "taskq"},
        },
    }
