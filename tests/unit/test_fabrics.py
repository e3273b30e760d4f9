"""MPI does not wait for fabrics that a machine does not have."""

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


@pytest.mark.parametrize(
    ("devices", "given", "expected"),
    [
        ([], {}, "none"),
        (["mlx5_0"], {}, None),
        ([], {"UCX_MEM_MMAP_HOOK_MODE": "reloc"}, "reloc"),
        ([], {"UCX_MEM_EVENTS": "yes"}, None),
    ],
    ids=["no device", "a device", "its variable", "a variable of all events"],
)
def test_ucx_patches_the_c_library_for_devices_alone(
    devices, given, expected, tmp_path
):
    for name in devices:
        (tmp_path / name).touch()
    environment = {**given}
    with fabrics.settings_of_ucx(environment, devices=(tmp_path,)):
        assert environment.get("UCX_MEM_MMAP_HOOK_MODE") == expected
    del environment["UCX_MEMTYPE_CACHE"]
    # Programs on other machines may inherit the environment.
    assert environment == given
