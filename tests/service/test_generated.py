"""The stored module of the messages is what the oldest supported grpcio-tools generates from the .proto file."""

import subprocess
import sys

from tests.support.apps import ROOT

HERE = "ratelimit_mw/service"


def test_the_stored_module_is_generated_from_the_proto_file(tmp_path):
    command = ["-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, *command, f"{HERE}/ratelimit.proto"], cwd=ROOT, check=True)
    for name in ("ratelimit_pb2.py", "ratelimit_pb2.pyi"):
        assert (tmp_path / HERE / name).read_text("utf-8") == (ROOT / HERE / name).read_text("utf-8")
