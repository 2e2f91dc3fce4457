"""Each module has one name, from whatever folder it is imported."""

import json
import sys
from pathlib import Path

from support.builds import FOLDERS, ROOT, run

IMPORT_ALL = """
import importlib, json, pkgutil, sys, warnings
import kellet
names = [m.name for m in pkgutil.walk_packages(kellet.__path__, "kellet.")]
assert "kellet.sdk.errors" in names
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
print(json.dumps({n: m.__file__ for n, m in sys.modules.items() if getattr(m, "__file__", None)}))
"""


def test_no_file_is_loaded_under_two_names() -> None:
    # From the root of the checkout, where `import sdk` would find the folder.
    files = json.loads(run(sys.executable, "-c", IMPORT_ALL, cwd=ROOT).splitlines()[-1])
    ours: dict[Path, str] = {}
    for name, file in files.items():
        path = (ROOT / file).resolve()
        if name.startswith("kellet.") or any(path.is_relative_to(ROOT / f) for f in FOLDERS):
            assert name.startswith("kellet."), f"{path} is loaded as {name}"
            assert path not in ours, f"{path} is loaded as {ours[path]} and {name}"
            ours[path] = name
    assert len(ours) > 20


def test_no_source_imports_a_folder_by_its_bare_name() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                words = line.split()
                if len(words) > 1 and words[0] in ("import", "from"):
                    assert words[1].split(".")[0] not in FOLDERS, f"{path}:{number}"
