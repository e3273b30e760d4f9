"""tfring-bench: its arithmetic and output; tests/jobs has its measurements."""

import argparse
import json
import math
import re

import numpy as np
import pytest

from tfring.bench import (
    cli,
    peers,
    plots,
    predict,
    report,
    sizes,
    statistics,
)
from tfring.bench.kinds import KINDS
from tfring.bench.measure import expect
from tfring.bench.statistics import Row, Spread


def test_parse_bytes():
    sizes_of = {"4": 4, "64k": 64 << 10, "16M": 16 << 20, " 1g ": 1 << 30}
    for text, expected in sizes_of.items():
        assert sizes.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "k", "0", "-4", "4t"])
def test_parse_bytes_refuses(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        sizes.parse_bytes(text)


def test_steps():
    assert sizes.steps(4, 63, 4) == [4, 16]
    assert sizes.steps(4, 64, 4) == [4, 16, 64]
    with pytest.raises(ValueError, match="factor must be 2 or more"):
        sizes.steps(4, 64, 1)


@pytest.mark.parametrize(
    ("show", "value", "expected"),
    [
        (sizes.format_bytes, 1024, "1 KiB"),
        (sizes.format_bytes, 1536, "1536 B"),
        (sizes.format_bytes, 64 << 20, "64 MiB"),
        (sizes.format_bytes, 1 << 30, "1 GiB"),
        (sizes.format_bytes, 102_228_128, "102.2 MB"),
        (statistics.format_seconds, 0, "0.00 us"),
        (statistics.format_seconds, 45.67e-6, "45.7 us"),
        (statistics.format_seconds, 456.7e-6, "457 us"),
        (statistics.format_seconds, 2.5, "2.50 s"),
    ],
)
def test_formats(show, value, expected):
    assert show(value) == expected


@pytest.mark.parametrize(
    ("preset", "count", "parameters"),
    # The parameters as the papers' own code counts them.
    [("resnet50", 161, 25_557_032), ("bert-base", 199, 109_482_240)],
)
def test_presets(preset, count, parameters):
    shapes = sizes.PRESETS[preset]()
    assert len(shapes) == count
    assert sum(map(math.prod, shapes)) == parameters


def test_bus_factors():
    assert KINDS["allreduce"].bus_factor(2) == 1
    assert KINDS["allreduce"].bus_factor(4) == 1.5
    assert KINDS["broadcast"].bus_factor(4) == 1
    for kind in ("allgather", "reducescatter", "alltoall"):
        assert KINDS[kind].bus_factor(4) == 0.75


def row(who="mpi", **more):
    seconds = Spread.of([2e-3, 1e-3, 4e-3])
    return Row("4 MiB", 4 << 20, who, seconds, 1e-3, **more)


def test_table():
    rows = [
        row(algorithm_bandwidth=2.1e9, bus_bandwidth=3.1e9),
        row(who="empty function"),
    ]
    head, first, second = report.table(rows).splitlines()
    # No row reports memory, so there is no such column.
    assert head.split() == ["median", "min", "max", "algbw", "busbw", "CPU"]
    assert first.split("  ")[0] == "4 MiB"
    assert "2.00 ms  1.00 ms  4.00 ms  2.10 GB/s  3.10 GB/s  1.00 ms" in first
    assert second.split()[-4:] == ["-", "-", "1.00", "ms"]
    assert "2.0 MiB" in report.table([row(added_bytes=2 << 20)])
    assert "4.19 MB" in report.table([row(sent_bytes=float(4 << 20))])


def test_json(tmp_path):
    path = tmp_path / "figures.json"
    machine = report.machine(ranks=2)
    report.write_json(path, machine, ["model"], [row()])
    content = json.loads(path.read_text())
    assert content["machine"]["ranks"] == 2
    assert content["command"] == ["model"]
    assert content["rows"][0]["seconds"]["median"] == 2e-3
    assert content["rows"][0]["who"] == "mpi"
    assert report.describe(machine).startswith("2 ranks, ")


def test_expect():
    expect([[1, 2], [3]], [np.array([1, 2]), np.array([3])])
    expect([1.001], np.array([1.0]), relative=1e-2)
    expect([5], None)
    with pytest.raises(AssertionError):
        expect([1.001], np.array([1.0]))
    with pytest.raises(ValueError, match="longer"):
        expect([[1]], [np.array([1]), np.array([2])])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["step"], "invalid choice: 'step' .choose from '?allreduce'?, .*"),
        (["allreduce", "--peers=nccl"], "--peers: there is no nccl; known are"),
        (["allreduce", "--modes=lazy"], "--modes: there is no lazy; known are"),
        (["allreduce", "--min_bytes=much"], "--min_bytes: a size is a number"),
        (["allreduce", "--max_bytes=1"], "4 bytes, is over the largest, 1"),
        (["allreduce", "--preset=resnet50"], "unrecognized arguments: --pres"),
        (["model", "--rounds=0"], "--rounds must be at least 1, got 0"),
        (["model", "--preset=vgg"], "--preset: invalid choice: 'vgg'"),
    ],
)
def test_what_cannot_be_done(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    assert re.search(complaint, capsys.readouterr().err)


def test_one_rank_has_nobody_to_talk_to(capsys):
    assert cli.main(["allreduce"]) == 2
    assert "tfringrun -np 2 tfring-bench allreduce" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert "tfringrun -np 2 tfring-bench allreduce" in text
    assert set(KINDS) | {"model"} <= set(text.split())


def test_a_plot_needs_matplotlib(monkeypatch, capsys):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        cli.main(["allreduce", "--plot=figures.svg"])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_each_contestant_has_its_colour_in_all_plots():
    contestants = {"tfring", "empty", *peers.PEERS}
    colours = {plots.colour(f"{who} in place") for who in contestants}
    assert len(colours) == len(contestants)
    assert plots.TEXT_COLOUR not in colours
    for who in contestants:
        modes = ("", " eager", " function", " function, no MPI", " in place")
        assert len({plots.colour(who + mode) for mode in modes}) == 1
    assert plots.colour("2 copies") == plots.TEXT_COLOUR


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4
        for x in parts
    ]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("page", ["#ffffff", "#1e2129"])
@pytest.mark.parametrize("colour", [*plots.COLOURS.values(), plots.TEXT_COLOUR])
def test_plots_can_be_read_on_light_and_dark_pages(colour, page):
    dark, light = sorted(map(luminance, (colour, page)))
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_tfring_is_in_front_of_its_peers():
    _, axes = plots.canvas(6, 4)
    for who in ("tfring in place", "mpi in place", "mpi"):
        plots.line(axes, who, [1, 2], [3, 4])
    ours, in_place, peer = axes.lines
    assert ours.get_zorder() > peer.get_zorder()
    assert ours.get_linewidth() > peer.get_linewidth()
    assert in_place.get_color() == peer.get_color()
    assert in_place.get_linestyle() != peer.get_linestyle()


@pytest.mark.parametrize("cases", [1, 2])
def test_a_plot_of_rows_has_no_ground(cases, tmp_path):
    rows = [
        Row(f"{size} B", size, who, Spread.of([1e-3, 2e-3]), 0)
        for who in ("tfring in place", "mpi")
        for size in (1024, 4096)[:cases]
    ]
    path = tmp_path / "plot.svg"
    plots.plot(path, "2 ranks", rows)
    text = path.read_text()
    assert "<!-- mpi -->" in text
    assert all(f"fill: {plots.colour(row.who)}" in text for row in rows)
    assert "#ffffff" not in text


def test_peers_say_what_they_need(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert peers.missing("mpi", "float32") is None
    said = peers.missing("gloo", "float32")
    assert said == "gloo: PyTorch is not installed"


def test_peers_name_the_dtypes_that_they_know():
    assert peers.missing("mpi", "int64") is None
    said = peers.missing("mpi", "float16")
    assert said == "mpi: measured with float32, float64, int32, int64 only"


def test_predict_counts_what_backpropagation_hides():
    tensors = [32 << 20] * 5  # of which two are fused
    seconds = {64 << 20: 2.0, 32 << 20: 1.0}

    def reduction(size):
        return seconds[size], "ring"

    alone = predict.predict(tensors, 0, reduction)
    assert (alone.seconds, alone.reductions, alone.plans) == (5, 3, ["ring"])
    assert alone.exposed_seconds == 5
    # Gradients are ready every 2 s, and each is reduced at once.
    slow = predict.predict(tensors, 10, reduction)
    assert (slow.reductions, slow.exposed_seconds) == (5, 1)
    # They are ready every second. Three more are while the first is reduced.
    fast = predict.predict(tensors, 5, lambda size: (3.0, "ring"))
    assert (fast.reductions, fast.exposed_seconds) == (3, 5)


def test_predict_knows_the_cost_model(capsys):
    arguments = ["--ranks=64", "--per_node=8", "--gbits=100", "--bytes=32m"]
    assert cli.main(["predict", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "64 ranks on 8 nodes, 33.6 MB of gradients in 1 reduction"
    )
    assert re.fullmatch(
        r"reduced in [\d.]+ ms by hierarchical 8 x 2 x 2 x 2", lines[1]
    )
    assert cli.main(["predict", *arguments, "--backprop_ms=40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # The first bucket has one mebibyte, and each of the eight others up to
    # four.
    assert "33.6 MB of gradients in 9 reductions" in lines[0]
    assert re.search(
        r"beside 40.0 ms of backpropagation: 9\d% hidden", lines[2]
    )
    with pytest.raises(SystemExit):
        cli.main(["predict", "--ranks=10", "--per_node=8", "--gbits=1"])
    assert "--ranks=10 is no multiple" in capsys.readouterr().err


def test_predict_takes_the_segments_of_gpus(capsys):
    # With a rank on each node, nothing else depends on the flag. A chunk of 16
    # MiB is one segment of a GPU, which adds it up after it has arrived.
    arguments = ["--ranks=2", "--per_node=1", "--gbits=100", "--bytes=32m"]
    times = []
    for flags in ([], ["--link_per_rank"]):
        assert cli.main(["predict", *arguments, *flags]) == 0
        said = capsys.readouterr().out
        times.append(float(re.search(r"reduced in ([\d.]+) ms", said)[1]))
    # Segments of hosts are on the wire while earlier ones are added up.
    wire_ms = (16 << 20) / 12.5e9 * 1e3
    assert times[1] - times[0] == pytest.approx(wire_ms, rel=0.1)
