"""The TaskQ page inside Airflow: its plugin, its JSON API and what the browser loads."""
