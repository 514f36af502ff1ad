"""Look up known vulnerabilities of what is installed in `.venv`. `make audit` installs what this needs.

pip-audit skips what its advisory service does not know, and calls the rest clean. Behind a mirror of PyPI without advisories that
is everything. So a package that was not looked up counts as a failure here: an audit confirms for each that nothing is known, or fails.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

_VULNERABLE: Final = 1
_NOT_AUDITED: Final = 2


def judged(found: Iterable[Mapping[str, Any]], service: str) -> tuple[int, list[str]]:
    """Judge what pip-audit has found, as an exit code and lines for people.

    Args:
        found: Its `dependencies`: each has a name, and a `skip_reason`, or a version and `vulns`.
        service: The advisory service that was asked.
    """
    packages = list(found)
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, mended in "
        f"{', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for package in packages
        for vulnerability in package.get("vulns", ())
    ]
    if lines:
        return _VULNERABLE, [*lines, *_not_looked_up(skipped, len(packages), service)]
    if skipped or not packages:
        return _NOT_AUDITED, _not_looked_up(skipped, len(packages), service)
    return 0, [f"{len(packages)} packages were looked up at {service!r}: nothing is known against them"]


def _not_looked_up(skipped: list[str], total: int, service: str) -> list[str]:
    if not skipped and total:
        return []
    message = (
        f"{len(skipped)} of {total} packages were NOT audited: the service {service!r} knows nothing of them, or a mirror stands "
        "before it that has no advisories. Try `make audit SERVICE=osv`, or audit where the service can be reached. They are: "
        f"{', '.join(skipped) or 'none'}"
    )
    return [message]


def main(site_packages: str, service: str) -> int:
    """Run pip-audit over a directory of packages and print what it found."""
    options = [
        "--skip-editable",
        "--progress-spinner=off",
        "--format=json",
        f"--vulnerability-service={service}",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options, f"--path={site_packages}"],
        capture_output=True,
        text=True,
    )
    try:
        code, lines = judged(json.loads(ended.stdout)["dependencies"], service)
    except (ValueError, KeyError):
        reason = ended.stderr.strip().rpartition("\n")[2] or f"pip-audit ended with {ended.returncode}"
        code = _NOT_AUDITED
        lines = [
            f"nothing was audited: the advisory service {service!r} cannot be reached, or pip-audit failed: {reason}"
        ]
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
