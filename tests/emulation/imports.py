"""Import every module that a device installs: ``python -m emulation.imports`` writes what came.

One JSON object: ``imported``, ``missing`` (module: the package that it wanted), and facts.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

PACKAGES = ("kellet.firmware_profiles", "kellet.kernels", "kellet.sdk")


def walk(name: str, imported: list[str], missing: dict[str, str]) -> None:
    """Import a module, and those below it where it is a package."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing[name] = str(error.name)
        return
    imported.append(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        if not found.name.endswith(".__main__"):
            walk(found.name, imported, missing)


def unmet() -> list[str]:
    """What the wheel asks for, without extras, and is not installed in such a version."""
    wanted = [Requirement(each) for each in requires("kellet") or ()]
    return [str(each) for each in wanted if _applies(each) and not _met(each)]


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _met(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name))
    except PackageNotFoundError:
        return False


def main() -> None:
    imported: list[str] = []
    missing: dict[str, str] = {}
    for package in PACKAGES:
        walk(package, imported, missing)
    from kellet import kernels
    from kellet.kernels import _library
    from kellet.kernels.targets import TARGETS

    library = _library.library_path()
    facts = {
        "machine": platform.machine(),
        "backend": kernels.backend(),
        "library": str(library),
        "tuned": [cpu for cpu in TARGETS["aarch64"].tunings if _library.is_fresh(library, cpu)],
        "compilers": sorted({"numba", "llvmlite", "torch", "onnx"} & {*sys.modules}),
        "unmet": unmet(),
        "version": version("kellet"),
    }
    print(json.dumps({"imported": imported, "missing": missing, **facts}))


if __name__ == "__main__":
    main()
