"""Build what the playground of the site loads: PGlite, and the script of the schema. Also a hook of MkDocs.

PGlite is PostgreSQL for a browser. Its npm package is fetched with npm, from the registry that npm is configured for,
and must have the integrity hash of `tools/pins/pglite.json`. Large files are compressed, and the page decompresses
them, so the size of the download does not depend on the server of the site. Nothing else is changed.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "playground"
FILES = BUILD / "files"  # served as playground/files/ of the site
ARCHIVES = {"postgres": "pglite.wasm", "initdb": "initdb.wasm", "data": "pglite.data"}
log = logging.getLogger("mkdocs.hooks.taskq")
IMPORT = re.compile(r'(?:\bfrom|\bimport)\s*"\./([\w-]+\.js)"')


class PlaygroundError(Exception):
    """What failed, and what to do, in one sentence."""


def build() -> Path:
    """Write all files, those of PGlite only if they are missing. Return their folder."""
    pin = json.loads((ROOT / "tools" / "pins" / "pglite.json").read_text(encoding="utf-8"))
    FILES.mkdir(parents=True, exist_ok=True)
    with one_at_a_time():
        folder = FILES / ("pglite-" + pin["version"])
        if not folder.exists():
            unpack(fetch(pin, BUILD / "package"), folder)
        schema = write_schema()
        for old in [*FILES.glob("pglite-*"), *FILES.glob("schema-*")]:
            if old not in {folder, schema}:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        manifest = describe(folder, schema)
        (FILES / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return FILES


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let a second build wait for the first one."""
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(pin: dict[str, str], folder: Path) -> Path:
    """Return the npm package of the pin in a folder, fetched unless an earlier call has fetched it."""
    name = "%s-%s.tgz" % (pin["package"].lstrip("@").replace("/", "-"), pin["version"])
    if not (folder / name).exists():
        npm = shutil.which("npm")
        if npm is None:
            raise PlaygroundError(
                "npm fetches %(package)s, and is not on the PATH: install Node.js with npm"
                " (on Debian: apt-get install npm)" % pin
            )
        folder.mkdir(exist_ok=True)
        command = [npm, "pack", "--silent", "%(package)s@%(version)s" % pin, "--pack-destination", str(folder)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PlaygroundError("%s failed: %s" % (" ".join(command[1:4]), done.stderr.strip()[-2000:]))
    check_integrity(folder / name, pin["integrity"])
    return folder / name


def check_integrity(package: Path, integrity: str) -> None:
    """Raise PlaygroundError, and remove the package, if it is another one than that of the pin in tools/pins."""
    algorithm, _, expected = integrity.partition("-")
    found = base64.b64encode(hashlib.new(algorithm, package.read_bytes()).digest()).decode()
    if found != expected:
        package.unlink()
        raise PlaygroundError(
            "%s has the hash %s-%s, not that of its pin in tools/pins" % (package.name, algorithm, found)
        )


def unpack(package: Path, folder: Path) -> None:
    """Write the files of PGlite that the page loads. The folder appears when it is complete."""
    made = folder.with_name("new-" + folder.name)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    with tarfile.open(package) as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile("package/" + name)
            if member is None:
                raise PlaygroundError("%s has no file %s" % (package.name, name))
            return member.read()

        (made / "LICENSE").write_bytes(read("LICENSE"))
        for name in ARCHIVES.values():
            write_compressed(made / (name + ".gz"), read("dist/" + name))
        waiting = ["index.js"]
        while waiting:
            name = waiting.pop()
            if not (made / name).exists():
                script = read("dist/" + name)
                (made / name).write_bytes(script)
                waiting += IMPORT.findall(script.decode())
    made.rename(folder)


def write_schema() -> Path:
    """Write the script that `taskq sql` prints. Its name has its checksum, so no browser keeps an older one."""
    from airflow_provider_taskq.cli.schema import ddl_script

    script = ddl_script().encode()
    path = FILES / ("schema-%s.sql.gz" % hashlib.sha256(script).hexdigest()[:12])
    write_compressed(path, script)
    return path


def write_compressed(path: Path, content: bytes) -> None:
    """Write a file that is the same for the same content."""
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def describe(folder: Path, schema: Path) -> dict[str, Any]:
    """Return what the page reads first: which files to load, and their sizes in bytes."""
    paths = {kind: folder / (name + ".gz") for kind, name in ARCHIVES.items()}
    paths["schema"] = schema
    loaded = [*paths.values(), *folder.glob("*.js")]
    return {
        "module": (folder / "index.js").relative_to(FILES).as_posix(),
        "bytes": sum(path.stat().st_size for path in loaded),
        "archives": {
            kind: {"path": path.relative_to(FILES).as_posix(), "bytes": path.stat().st_size}
            for kind, path in paths.items()
        },
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the built files to the site. MkDocs calls it.

    A machine without npm builds a site whose playground says that it has no database. The workflow that publishes the
    site sets TASKQ_PLAYGROUND=required, and then fails instead.
    """
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    try:
        folder = build()
    except PlaygroundError as error:
        if os.environ.get("TASKQ_PLAYGROUND") == "required":
            raise PluginError("playground: %s" % error) from error
        log.info("the site is built without a database for the playground: %s", error)
        return files
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = "playground/files/" + path.relative_to(folder).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


if __name__ == "__main__":
    try:
        print("playground: the files are in %s" % build().relative_to(ROOT))
    except PlaygroundError as error:
        sys.exit("playground: %s" % error)
