"""What a test needs of Airflow that an older release doesn't have."""

import pytest

from airflow_provider_taskq.triggers.event import has_shared_streams

CLAIMS_SHARE_STREAMS = "claiming events needs the shared streams of Airflow 3.3"
CLAIMING = pytest.mark.skipif(not has_shared_streams(), reason=CLAIMS_SHARE_STREAMS)
