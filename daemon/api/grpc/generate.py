"""Makes the stubs in gen/ from bayard.proto: `python -m daemon.api.grpc.generate [FOLDER]`. Needs grpcio-tools."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.errors import ConfigError

HERE = Path(__file__).resolve().parent
PACKAGE = "daemon.api.grpc.gen"


def generate(folder: Path) -> None:
    """Write the stubs. Raises: ConfigError if the compiler refuses the proto or is not installed"""
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigError("grpcio-tools is not installed.", "pip install grpcio-tools") from error
    folder.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}",
         str(HERE / "bayard.proto")]
    )  # fmt: skip
    if status != 0:
        raise ConfigError(f"protoc ended with status {status}.", "Its complaint is above.")
    stub = folder / "bayard_pb2_grpc.py"
    stub.write_text(stub.read_text().replace("import bayard_pb2 as", f"from {PACKAGE} import bayard_pb2 as"))
    (folder / "__init__.py").write_text('"""Made from bayard.proto; see daemon.api.grpc.generate."""\n')


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "gen")
