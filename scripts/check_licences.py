"""Check that everything that calibrant installs has a licence that we may build on.

    python scripts/check_licences.py [--list]

Reads the metadata of installed packages, from calibrant's requirements with all its extras and on
to theirs. A package that names no licence, or one that is not on the list, fails the check.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

# Licences that ask for no more than their notice; MPL covers changed files alone. cuDNN and the
# like come with PyTorch's builds for GPUs, and are only linked.
ALLOWED = (
    r"apache(?: software)?(?: license)?[ ,-]*(?:version )?2(?:\.0)?|apache software license",
    r"mit(?:-cmu| license|-0)?|expat(?: license)?|hpnd",
    r"(?:new |modified |simplified )?bsd(?: license)?|(?:0|2|3)-?clause bsd(?: license)?",
    r"bsd[- ](?:2|3)-clause(?: license)?|0bsd",
    r"isc(?: license)?(?: \(iscl\))?|zlib|unlicense|the unlicense \(unlicense\)|cc0-1\.0",
    r"python software foundation license|psf(?:-2\.0)?|python-2\.0",
    r"mozilla public license 2\.0 \(mpl 2\.0\)|mpl-2\.0",
    r"public domain|blueoak-1\.0\.0|zpl-2\.1|bsl-1\.0|llvm-exception",
    r"nvidia proprietary software|licenseref-nvidia-proprietary",
)
# Packages whose metadata has another form, read by hand.
KNOWN = {
    "cuda-bindings": "NVIDIA's, comes with PyTorch for GPUs",
    "cuda-pathfinder": "NVIDIA's, comes with PyTorch for GPUs",
    "matplotlib": "PSF-based, see its LICENSE",
}


def iterate_installed(root: str) -> dict[str, Distribution]:
    """Return the installed packages that a package with all its extras needs, by name."""
    installed: dict[str, Distribution] = {}
    waiting = [(root, True)]
    while waiting:
        name, with_extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in installed:
            continue
        try:
            installed[key] = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed here, or for another system
        for text in installed[key].requires or ():
            needed = Requirement(text)
            extras = ["", *(installed[key].metadata.get_all("Provides-Extra") or ())]
            chosen = extras if with_extras else [""]
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in chosen):
                waiting.append((needed.name, False))
    return installed


def read_licences(package: Distribution) -> list[str]:
    """Return the licences that a package names: an SPDX expression, classifiers, or a line."""
    metadata = package.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return [
            part for part in re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", expression) if part.strip()
        ]
    classifiers = [
        classifier.rsplit(" :: ", 1)[-1]
        for classifier in metadata.get_all("Classifier") or ()
        if classifier.startswith("License :: ") and classifier != "License :: OSI Approved"
    ]
    if classifiers:
        return classifiers
    line = (metadata.get("License") or "").strip().partition("\n")[0]
    return [
        part.strip() for part in re.split(r"\s+(?:and|or|AND|OR)\s+|[&;]", line) if part.strip()
    ]


def is_allowed(licence: str) -> bool:
    """Return whether a licence is on the list."""
    return any(re.fullmatch(pattern, licence.strip().lower()) for pattern in ALLOWED)


def find_faults(packages: dict[str, Distribution]) -> list[str]:
    """Return a line for each package whose licence is unknown or not allowed."""
    faults = []
    for name, package in sorted(packages.items()):
        licences = read_licences(package)
        wrong = [licence for licence in licences if not is_allowed(licence)]
        if name not in KNOWN and (wrong or not licences):
            faults.append(f"{name}: {', '.join(wrong) or 'names no licence'}")
    return faults


def main() -> int:
    """Check the environment that runs this."""
    packages = iterate_installed("calibrant")
    if "--list" in sys.argv:
        for name, package in sorted(packages.items()):
            print(f"{name}: {', '.join(read_licences(package))}")
    faults = find_faults(packages)
    for fault in faults:
        print(fault)
    print(f"{len(packages)} packages, {len(faults)} with a licence that is not on the list")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
