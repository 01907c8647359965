"""What is built from this repository holds the templates, as `neptune.templates` and under no other name."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted(p.stem for p in (ROOT / "templates").glob("*.py") if p.stem != "__init__")
IMPORTS = """
import importlib, sys
from neptune import templates
from neptune.tune.choose import shipped_templates
assert templates.__file__.startswith(sys.argv[1]), templates.__file__
for name in sys.argv[2:]:
    assert callable(getattr(importlib.import_module(f"neptune.templates.{name}"), name)), name
assert sorted(shipped_templates()) == sys.argv[2:], shipped_templates()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with a wheel and a source distribution, built without a network."""
    pytest.importorskip("hatchling")
    folder: Path = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=120)
    return folder


def python(code: str, path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("form", ["wheel", "sdist", "checkout"])
def test_every_template_can_be_imported(form, built, tmp_path):
    if form == "wheel":
        with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
            archive.extractall(tmp_path)
            assert not [n for n in archive.namelist() if n.startswith("templates")]
            assert "neptune/records/shipped/h200.jsonl" in archive.namelist()
        root = tmp_path
    elif form == "sdist":
        with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
            archive.extractall(tmp_path, filter="data")
        (root,) = tmp_path.iterdir()
    else:
        # What an editable install puts on the path.
        root = ROOT
    done = python(IMPORTS, root, str(root), *TEMPLATES)
    assert done.returncode == 0, done.stderr


def test_the_folder_at_the_root_is_no_package_of_its_own():
    done = python("import templates", ROOT)
    assert done.returncode == 1 and "this package is neptune.templates" in done.stderr
