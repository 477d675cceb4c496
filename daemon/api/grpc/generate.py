"""Makes the stubs in gen/ from the protos: `python -m daemon.api.grpc.generate [FOLDER]`. Needs grpcio-tools.

The stubs of KServe get a descriptor pool of their own: a program may import them beside another maker's stubs of the
same protocol, whose messages have the same names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.errors import ConfigError

HERE = Path(__file__).resolve().parent
PACKAGE = "daemon.api.grpc.gen"
PROTOS = ("bayard", "kserve")
OWN_POOL = ("kserve",)


def generate(folder: Path) -> None:
    """Write the stubs. Raises: ConfigError if the compiler refuses a proto or is not installed"""
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise ConfigError("grpcio-tools is not installed.", "pip install grpcio-tools") from error
    folder.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}",
         *(str(HERE / f"{name}.proto") for name in PROTOS)]
    )  # fmt: skip
    if status != 0:
        raise ConfigError(f"protoc ended with status {status}.", "Its complaint is above.")
    for name in PROTOS:
        stub = folder / f"{name}_pb2_grpc.py"
        stub.write_text(stub.read_text().replace(f"import {name}_pb2 as", f"from {PACKAGE} import {name}_pb2 as"))
    for name in OWN_POOL:
        messages = folder / f"{name}_pb2.py"
        shared = "_descriptor_pool.Default()"
        if messages.read_text().count(shared) != 1:
            raise ConfigError(f"{messages.name} does not name its descriptor pool once.", "See what protoc wrote.")
        messages.write_text(messages.read_text().replace(shared, "_descriptor_pool.DescriptorPool()"))
    (folder / "__init__.py").write_text('"""Made from the protos; see daemon.api.grpc.generate."""\n')


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "gen")
