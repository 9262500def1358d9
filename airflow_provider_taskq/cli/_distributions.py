"""The distributions that contain this package: `airflow-provider-taskq`, and the one without Airflow."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version

FULL, CORE = "airflow-provider-taskq", "airflow-provider-taskq-core"


def installed_distributions() -> dict[str, str]:
    """Return the installed distributions of TaskQ with their versions; none if the package runs from its sources."""
    found = {}
    for name in (FULL, CORE):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def origin(name: str, wanted: str = "") -> str:
    """Return the arguments of `pip install` that name an installed distribution where it came from.

    pip records the folder of a clone or the address of a repository (PEP 610). What came from a package index is named
    by the distribution, and by the version if one is wanted.
    """
    given = json.loads(distribution(name).read_text("direct_url.json") or "{}")
    if "url" not in given:
        return f"{name}=={wanted}" if wanted else name
    if "vcs_info" in given:
        folder = f"#subdirectory={given['subdirectory']}" if "subdirectory" in given else ""
        return shlex.quote(f"{given['vcs_info']['vcs']}+{given['url']}{folder}")
    editable = given.get("dir_info", {}).get("editable", False)
    return ("--editable " if editable else "") + shlex.quote(given["url"])


def mixed_installation() -> str | None:
    """Return a message if both distributions are installed; None otherwise.

    Both own the same files, so the removal of one breaks the other.
    """
    found = installed_distributions()
    if len(found) < 2:
        return None
    return (
        f"{FULL} {found[FULL]} and {CORE} {found[CORE]} are both installed, and own the same files: keep {FULL}, with"
        f" pip uninstall {CORE}, and then pip install --force-reinstall --no-deps {origin(FULL, found[FULL])}"
    )


def without_airflow() -> bool:
    """Return whether this is an installation of the distribution without Airflow."""
    return set(installed_distributions()) == {CORE}
