"""Writes the repositories @tensorflow and @mpi that BUILD builds against."""

from collections.abc import Iterable
from pathlib import Path

from tfring_build.find import find_mpi, find_tensorflow

_TENSORFLOW = """\
package(default_visibility = ["//visibility:public"])

# absl's headers, and the library that holds its code.
cc_library(
    name = "absl",
    hdrs = glob(["include/absl/**/*"]),
    includes = ["include"],
    linkopts = [
        "-L{directory}",
        "-Wl,-rpath,{directory}",
        "-l:libtensorflow_framework.so.2",
    ],
)

cc_library(
    name = "tensorflow",
    hdrs = glob(["include/**/*"]),
    includes = ["include"],
    linkopts = ["-l:libtensorflow_cc.so.2"],
    deps = [":absl"],
)

cc_library(
    name = "xla",
    includes = [
        "include/external/farmhash_archive/src",
        "include/external/highwayhash",
    ],
    deps = [":tensorflow"],
)
"""

_MPI = """\
cc_library(
    name = "mpi",
    hdrs = glob(["include*/**/*"]),
    defines = ["OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX"],
    includes = {includes},
    linkopts = {link_flags},
    visibility = ["//visibility:public"],
)
"""


def write_repositories(directory: Path) -> None:
    """Writes one directory for each, with links to the headers in it."""
    tensorflow = find_tensorflow()
    _write_repository(
        directory / "tensorflow",
        _TENSORFLOW.format(directory=tensorflow.directory),
        [tensorflow.directory / "include"],
    )
    mpi = find_mpi()
    link_flags = list(mpi.link_flags)
    link_flags += [f"-Wl,-rpath,{library}" for library in mpi.library_dirs]
    includes = [_link_name(i) for i in range(len(mpi.include_dirs))]
    _write_repository(
        directory / "mpi",
        _MPI.format(includes=includes, link_flags=link_flags),
        mpi.include_dirs,
    )


def _write_repository(
    repository: Path, build: str, include_dirs: Iterable[Path]
) -> None:
    repository.mkdir(parents=True, exist_ok=True)
    (repository / "WORKSPACE").write_text(
        f'workspace(name = "{repository.name}")\n'
    )
    (repository / "BUILD").write_text(build)
    for index, include_dir in enumerate(include_dirs):
        link = repository / _link_name(index)
        link.unlink(missing_ok=True)
        link.symlink_to(include_dir)


def _link_name(index: int) -> str:
    return f"include{index or ''}"
