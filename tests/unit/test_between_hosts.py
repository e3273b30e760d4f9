"""When tfring's own TCP takes the place of MPI, and at which addresses."""

import pytest

from tfring._core import between_hosts, fabrics


@pytest.mark.parametrize(
    ("devices", "settings", "given", "expected"),
    [
        ([], "", {}, True),
        ([], "", {"OMPI_MCA_btl": "^ofi"}, True),
        (["mlx5_0"], "", {}, False),
        ([], "btl = tcp,self\n", {}, False),
        ([], "", {"OMPI_MCA_btl": "self,tcp"}, False),
        ([], "", {"OMPI_MCA_pml": "ucx"}, False),
    ],
    ids=["none", "tfring's choice", "a device", "a file", "btl", "pml"],
)
def test_fabrics_are_absent(devices, settings, given, expected, tmp_path):
    folder = tmp_path / "infiniband"
    folder.mkdir()
    for name in devices:
        (folder / name).touch()
    file = tmp_path / "params.conf"
    file.write_text(settings)
    assert fabrics.are_absent(given, (file,), (folder,)) == expected


# The addresses of a machine's interfaces.
INTERFACES = {
    "lo": "127.0.0.1",
    "eth0": "10.1.0.7",
    "docker0": "172.17.0.1",
    "tunnel": None,
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["10.1.0.7", "172.17.0.1"]),
        ({"OMPI_MCA_btl_tcp_if_include": "eth0"}, ["10.1.0.7"]),
        ({"OMPI_MCA_btl_tcp_if_include": "10.1.0.0/16"}, ["10.1.0.7"]),
        ({"OMPI_MCA_btl_tcp_if_include": "eth1,lo"}, []),
        ({"OMPI_MCA_btl_tcp_if_exclude": "lo, docker0"}, ["10.1.0.7"]),
    ],
    ids=["all", "a name", "a subnet", "none", "left out"],
)
def test_a_user_chooses_the_network(given, expected, monkeypatch):
    monkeypatch.setattr(
        between_hosts.socket, "if_nameindex", lambda: enumerate(INTERFACES)
    )
    monkeypatch.setattr(between_hosts, "_address_of", INTERFACES.get)
    assert between_hosts.own_addresses(given) == expected


def test_the_address_of_the_loopback_interface():
    assert between_hosts._address_of("lo") == "127.0.0.1"
    assert between_hosts._address_of("no such interface") is None
