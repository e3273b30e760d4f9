"""tfring counts as many bytes as the hosts' links carry."""

import re

import pytest
from endings import finish


@pytest.mark.parametrize("options", [(), ("--elastic", "--min-np", "2")])
def test_counted_is_what_the_link_carries(make_network, start, options):
    job = start(make_network(2), 1, "sent_bytes.py", options=options)
    output = finish(job, timeout=100)
    figures = re.findall(
        r"sent (\d+) bytes, of them (\d+) in allreduces; its link sent (\d+)",
        output,
    )
    assert len(figures) == 2, output
    for sent, reduced, passed in figures:
        # Two ranks: each sends as many bytes as the tensor has.
        assert int(reduced) == 3 * (8 << 20)
        assert int(reduced) < int(sent) < 1.001 * int(reduced)
        # Headers are added.
        assert int(sent) < int(passed) < 1.03 * int(sent)
