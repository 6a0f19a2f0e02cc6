import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_public_names_have_the_types_that_the_documentation_gives_them():
    """Every `type: ignore` in that file has to be needed: it stands for a mistake that mypy finds."""
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/typed_user.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
