"""From recordings to a trace, and from a trace to figures."""

import json

import pytest

from tfring._core import trace
from tfring.timeline import summary
from tfring.timeline.__main__ import main

MS = 1_000_000


def lines(*events):
    return "".join("\t".join(map(str, event)) + "\n" for event in events)


def recording(late_ms, offset_ms=0, wait_ms=4):
    """Returns one allreduce of 1000 bytes, with a wait at its end."""
    text = "0\n" + lines(
        ("request", "allreduce", 0, 1, late_ms * MS, 30 * MS, 1000, 0, "x"),
        ("negotiate", "allreduce", 0, 1, late_ms * MS, 18 * MS, 1000, 0, "x"),
        ("bucket", "allreduce", 0, 1, 20 * MS, 30 * MS, 1000, 1010, "x"),
        ("ring", "allreduce", 0, 1, 21 * MS, 29 * MS, 1000, 0, "x"),
        ("wait", "allreduce", 0, 2, (30 - wait_ms) * MS, 31 * MS, 0, 0, "x"),
    )
    return trace.Recording("host", offset_ms * MS, *trace.parse(text))


def test_parse():
    dropped, [event] = trace.parse(
        "7\n" + lines(("ring", "broadcast", 3, 4, 5, 6, 7, 8, r"a b\tc"))
    )
    assert dropped == 7
    assert event == trace.Event(
        *("ring", "broadcast", 3, 4, 5, 6, 7, 8, r"a b\tc")
    )


def test_clocks_are_aligned():
    here, there = recording(10), recording(10, offset_ms=500)
    events = trace.chrome_events([here, there])
    begins = {
        event["pid"]: event["ts"]
        for event in events
        if event["ph"] == "b" and event["cat"] == "request"
    }
    assert begins == {0: 0, 1: 500_000}


def test_summary():
    figures = summary.summarize(
        trace.chrome_events([recording(10), recording(15, wait_ms=10)])
    )
    first, second = figures.ranks[0], figures.ranks[1]
    assert (first.requests, first.buckets, first.count_bytes) == (1, 1, 1000)
    assert first.seconds == pytest.approx(0.010)
    # It waits for 4 ms of 10, and a ms beyond, which is not communication.
    assert first.overlap == pytest.approx(0.6)
    assert second.overlap == pytest.approx(0.0)
    assert first.late_seconds == 0
    assert second.late_seconds == pytest.approx(0.005)
    assert figures.slowest_rank == 1
    of_kind = figures.kinds["allreduce"]
    assert (of_kind.buckets, of_kind.count_bytes) == (1, 1000)
    assert of_kind.sent_bytes == 1010
    # With two ranks, each sends the size of the tensor in 10 ms.
    assert of_kind.bus_bandwidth == pytest.approx(1e5)


def test_unions():
    spans = summary._union([(5, 6), (1, 3), (2, 4), (4, 5)])
    assert spans == [(1, 6)]
    spans = summary._union([(8, 9), (1, 3)])
    assert spans == [(1, 3), (8, 9)]
    assert summary._intersection(spans, [(0, 2), (2.5, 8.5)]) == [
        (1, 2),
        (2.5, 3),
        (8, 8.5),
    ]


def test_command(tmp_path, capsys):
    path = tmp_path / "timeline.json"
    trace.write(path, [recording(10), recording(15)])
    assert main(["summarize", str(path)]) == 0
    output = capsys.readouterr().out
    assert "rank 0: 1 requests in 1 buckets, 1000 B in 10.0 ms" in output
    assert "overlap 60%" in output
    assert ", sent 1010 B" in output
    assert "slowest rank: 1" in output


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}"])
def test_what_is_no_timeline(tmp_path, capsys, content):
    path = tmp_path / "timeline.json"
    path.write_text(content)
    assert main(["summarize", str(path)]) == 2
    assert "is no timeline" in capsys.readouterr().err
    path.write_text(json.dumps({"traceEvents": []}))
    assert main(["summarize", str(path)]) == 2
    assert "no rank has recorded it" in capsys.readouterr().err
