"""A file system of a few megabytes, which can be filled. Only root can mount it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    return os.geteuid() == 0


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A new file system in memory; `size` as `mount` reads it, such as 600m."""
    with tempfile.TemporaryDirectory(prefix="taskq-disk-", dir="/tmp") as folder:
        subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["/bin/umount", "--lazy", folder], check=True)
