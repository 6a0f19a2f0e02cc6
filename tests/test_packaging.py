"""The sdist and the wheel: complete for those who have nothing else."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.support.apps import ROOT

pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def metadata(built):
    """What PyPI is told of the package."""
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        return email.message_from_bytes(wheel.read(name))


@pytest.mark.skipif(not ((ROOT / ".git").exists() and shutil.which("git")), reason="the repository is not here")
def test_an_sdist_has_every_file_of_the_repository_but_those_of_ci(built):
    command = ["git", "-c", "safe.directory=*", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    with tarfile.open(built[0]) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    kept = [name for name in listed if (ROOT / name).exists() and not name.startswith(".ci/")]
    assert [name for name in kept if name not in packed] == []


def test_a_wheel_has_every_file_of_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ratelimit_mw").rglob("*.*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_the_description_has_no_link_that_pypi_cannot_resolve(metadata):
    description = metadata.get_payload(decode=True).decode()
    assert "## Day one" in description
    assert [target for target in re.findall(r"\]\(([^)]*)\)", description) if not target.startswith("https://")] == []


def test_the_metadata_names_the_extras_that_the_documentation_names(metadata):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {extra for page in pages for extra in re.findall(r"ratelimit_mw\[([a-z]+)\]", page.read_text("utf-8"))}
    assert {"cli", "serve", "shared", "worker"} <= named <= set(metadata.get_all("Provides-Extra"))
