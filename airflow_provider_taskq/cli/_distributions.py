"""The distributions that contain this package: `airflow-provider-taskq`, and the one without Airflow."""

from importlib.metadata import PackageNotFoundError, version

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


def mixed_installation() -> str | None:
    """Return a message if both distributions are installed; None otherwise.

    Both own the same files, so the removal of one breaks the other.
    """
    found = installed_distributions()
    if len(found) < 2:
        return None
    return (
        f"{FULL} {found[FULL]} and {CORE} {found[CORE]} are both installed, and own the same files: keep {FULL}, with"
        f" pip uninstall {CORE}, and then pip install --force-reinstall --no-deps {FULL}=={found[FULL]}"
    )


def without_airflow() -> bool:
    """Return whether this is an installation of the distribution without Airflow."""
    return set(installed_distributions()) == {CORE}
