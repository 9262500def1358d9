"""Marks for tests that need a newer Airflow release."""

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_taskq.triggers.event import has_shared_streams

CLAIMS_SHARE_STREAMS = "claiming events needs the shared streams of Airflow 3.3"
RENDERING = pytest.mark.skipif(
    not hasattr(BaseTrigger, "render_template_fields"), reason="the triggerer renders templates from Airflow 3.3 on"
)
CLAIMING = pytest.mark.skipif(not has_shared_streams(), reason=CLAIMS_SHARE_STREAMS)
