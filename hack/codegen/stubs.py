"""Generates the gRPC stubs next to the .proto files of ``dra_driver_api.kubelet``; behind ``make stubs``.

Messages and services come from protoc, the types of the services from here, as protoc writes none. The output
depends on the .proto files and the version of grpcio-tools alone.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata, resources
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto
from grpc_tools import protoc

API = Path(__file__).resolve().parents[2] / "api"
PACKAGE = "dra_driver_api/kubelet"

_CALLABLES = {
    (False, False): "UnaryUnaryMultiCallable",
    (False, True): "UnaryStreamMultiCallable",
    (True, False): "StreamUnaryMultiCallable",
    (True, True): "StreamStreamMultiCallable",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, or up to date; 1 not up to date; 2 protoc refused the .proto files."""
    parser = argparse.ArgumentParser(description="Generate the gRPC stubs from the .proto files.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--check", action="store_true", help="write nothing; fail when the stubs are out of date")
    where.add_argument("--output", type=Path, default=API, help="directory to write to (default: api/)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.check:
            return check()
        generate(chosen.output)
    except ProtocError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def check() -> int:
    """Compare what would be generated with what is there, and name the files that differ."""
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        generate(fresh)
        stale = sorted(_differing(fresh))
    for name in stale:
        print(f"{name} is out of date, run: make stubs", file=sys.stderr)
    if stale:
        print(f"compared with the output of grpcio-tools {metadata.version('grpcio-tools')}", file=sys.stderr)
    return 1 if stale else 0


def generate(output: Path) -> None:
    """Write all stubs to ``output``/dra_driver_api/kubelet. Raises ProtocError."""
    output.mkdir(parents=True, exist_ok=True)
    protos = sorted(f"{PACKAGE}/{path.name}" for path in (API / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "descriptors"
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={API}",
                f"--proto_path={resources.files(grpc_tools) / '_proto'}",
                f"--python_out={output}",
                f"--pyi_out={output}",
                f"--grpc_python_out={output}",
                f"--descriptor_set_out={described}",
                *protos,
            ]
        )
        if status != 0:
            raise ProtocError(f"protoc ended with status {status}; its messages are above")
        files = FileDescriptorSet.FromString(described.read_bytes()).file
    for file in files:
        target = output / file.name.replace(".proto", "_pb2_grpc.pyi")
        target.write_text("".join(f"{line}\n" for line in _service_types(file)))


class ProtocError(Exception):
    """The .proto files are not valid."""


def _differing(fresh: Path) -> Iterator[str]:
    """Generated files, relative to api/, that are missing, changed or left over."""
    names = {path.name for root in (fresh, API) for path in (root / PACKAGE).glob("*_pb2*.py*")}
    for name in names:
        wanted, found = fresh / PACKAGE / name, API / PACKAGE / name
        if not (wanted.exists() and found.exists() and wanted.read_bytes() == found.read_bytes()):
            yield f"{PACKAGE}/{name}"


def _service_types(file: FileDescriptorProto) -> Iterator[str]:
    """Lines of the .pyi file of a _pb2_grpc module."""
    module = f"{Path(file.name).stem}_pb2"
    yield f"# Generated from {file.name} by hack/codegen/stubs.py. DO NOT EDIT!"
    if any(method.server_streaming for service in file.service for method in service.method):
        yield "from collections.abc import Iterator"
        yield ""
    yield "import grpc"
    yield ""
    yield f"from {PACKAGE.replace('/', '.')} import {module}"
    for service in file.service:
        yield from (
            "",
            f"class {service.name}Stub:",
            "    def __init__(self, channel: grpc.Channel) -> None: ...",
        )
        for method in service.method:
            kind = _CALLABLES[method.client_streaming, method.server_streaming]
            request, response = _types(module, method)
            yield f"    {method.name}: grpc.{kind}[{request}, {response}]"
        yield from ("", f"class {service.name}Servicer:")
        for method in service.method:
            request, response = _types(module, method)
            answer = f"Iterator[{response}]" if method.server_streaming else response
            arguments = f"self, request: {request}, context: grpc.ServicerContext"
            yield f"    def {method.name}({arguments}) -> {answer}: ..."
        name = f"{service.name}Servicer"
        yield from ("", f"def add_{name}_to_server(servicer: {name}, server: grpc.Server) -> None: ...")


def _types(module: str, method: MethodDescriptorProto) -> tuple[str, str]:
    """Python types of a method's request and response; client streams are not in use here."""
    request, response = (name.rpartition(".")[2] for name in (method.input_type, method.output_type))
    return f"{module}.{request}", f"{module}.{response}"


if __name__ == "__main__":
    sys.exit(main())
