"""An editable installation: a link tree that Python, mypy and editors all see."""

from pathlib import Path

import pytest
from support.builds import FOLDERS, copy_tree, fresh_venv, pip, run

pytestmark = pytest.mark.packaging

WHERE = """
import kellet.kernels, kellet.sdk.errors
print(kellet.kernels.backend(), kellet.kernels.__file__, kellet.sdk.errors.__file__)
"""


def test_editable_installation(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source", with_library=True)
    python = fresh_venv(tmp_path / "venv", with_our_packages=True)
    tree = source / ".editable" / "kellet"
    tree.mkdir(parents=True)
    (tree / "sdk").symlink_to("where_the_checkout_was")
    pip(python, "install", "--no-deps", "-e", source)
    assert sorted(link.name for link in tree.iterdir()) == list(FOLDERS)
    assert all(link.resolve() == source / link.name for link in tree.iterdir())

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    name, kernels, errors = run(python, "-W", "error", "-c", WHERE, cwd=elsewhere).split()
    assert name == "compiled"
    assert kernels == str(tree / "kernels" / "__init__.py")
    assert errors == str(tree / "sdk" / "errors.py")

    # A file that is added is seen at once; `rm -rf build` harms nothing.
    (source / "sdk" / "new_today.py").write_text("VALUE = 7\n")
    assert not (source / "build").exists() or run("rm", "-rf", source / "build") == ""
    code = "import kellet.sdk.new_today as new; print(new.VALUE)"
    assert run(python, "-c", code, cwd=elsewhere) == "7\n"
