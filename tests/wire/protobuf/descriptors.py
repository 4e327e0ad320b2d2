"""Make the descriptor set of gRPC that Parley ships, from the protos of the specification.

    git clone https://github.com/a2aproject/A2A
    uv run --with grpcio-tools --with googleapis-common-protos \
        python tests/wire/protobuf/descriptors.py A2A

The set has both versions, ``google.rpc`` and its dependencies in ``google.protobuf``, without
options: loading it needs no annotations of ``google.api``. The 0.3 proto is the last of its line,
with three fields more than 0.3.0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SET = Path(__file__).parents[3] / "src/parley/wire/protobuf/descriptors.binpb"
SOURCES = {
    "lf.a2a.v1": ("v1.0.1", "specification/a2a.proto"),
    "a2a.v1": ("b3b266d127dde3d1000ec103b252d1de81289e83", "specification/grpc/a2a.proto"),
}


def compiled(clone: str) -> list[Any]:
    """Return the descriptors of all files, each after its dependencies."""
    import google.rpc
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    known = Path(grpc_tools.__file__).parent / "_proto"
    common = Path(next(iter(google.rpc.__path__))).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        for package, (commit, path) in SOURCES.items():
            proto = Path(folder, "parley", f"{package}.proto")
            proto.parent.mkdir(exist_ok=True)
            proto.write_bytes(
                subprocess.check_output(["git", "-C", clone, "show", f"{commit}:{path}"])
            )
        made = Path(folder, "set")
        files = [f"parley/{package}.proto" for package in SOURCES]
        files += ["google/rpc/status.proto", "google/rpc/error_details.proto"]
        includes = [f"-I{each}" for each in (folder, known, common)]
        made_set = f"--descriptor_set_out={made}"
        if protoc.main(["protoc", *includes, "--include_imports", made_set, *files]):
            raise SystemExit(1)
        return list(FileDescriptorSet.FromString(made.read_bytes()).file)


def bare(file: Any) -> Any:
    """Return a file without options, and without imports that only options need."""
    kept = [each for each in file.dependency if not each.startswith("google/api/")]
    file.dependency[:] = kept
    pending: list[Any] = [file]
    while pending:
        each = pending.pop()
        for field, value in each.ListFields():
            if field.name == "options":
                if not getattr(value, "map_entry", False):
                    each.ClearField("options")
            elif field.message_type is not None:
                pending += value if field.is_repeated else [value]
    return file


def main(clone: str) -> None:
    """Write the set."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    annotations = ("google/api/", "google/protobuf/descriptor.proto")
    files = [bare(each) for each in compiled(clone) if not each.name.startswith(annotations)]
    SET.write_bytes(FileDescriptorSet(file=files).SerializeToString(deterministic=True))
    print(*(each.name for each in files), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
