"""Open MPI does not wait for fabrics that a machine does not have."""

import pytest

from tfring._core import fabrics


@pytest.mark.parametrize(
    ("devices", "settings", "given", "expected"),
    [
        ([], "", {}, "^ofi"),
        ([], "pml = ob1\n", {}, "^ofi"),
        (["mlx5_0"], "", {}, None),
        ([], "# mine\nbtl = tcp,self\n", {}, None),
        ([], "", {"OMPI_MCA_btl": "self,sm"}, "self,sm"),
    ],
    ids=["no device", "other settings", "a device", "a file", "a variable"],
)
def test_what_is_absent_is_left_out(
    devices, settings, given, expected, tmp_path
):
    folder = tmp_path / "infiniband"
    folder.mkdir()
    for name in devices:
        (folder / name).touch()
    environment = {"HOME": str(tmp_path), **given}
    [file, *_] = fabrics.files_of_settings(environment)
    file.parent.mkdir()
    file.write_text(settings)
    fabrics.skip_absent(
        environment, (file,), devices=(folder, tmp_path / "cxi")
    )
    assert environment.get("OMPI_MCA_btl") == expected
