"""A file system of a few megabytes, which can be filled. Only root can mount it."""

import errno
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


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """A file takes all the space that is left for the folder, until the block ends."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            yield
        finally:
            ballast.unlink()
