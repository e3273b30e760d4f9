"""The advice of `tfringrun --self-test`."""

from tfring.launcher import self_test


class TestSelfTest:
    VERSIONS = (("tfring", "0.1.0"), ("TensorFlow", "2.21.0"))

    def place(self, host="node1", *, cores=4, versions=VERSIONS):
        return self_test._Place(host, cores, 4, versions)

    def link(self, source, speed):
        return self_test._Link(source, source + 1, True, 1.0, speed)

    def test_nothing_to_mend(self):
        links = [self.link(0, 10.0), self.link(1, 3.0), self.link(2, 9.0)]
        assert self_test._advice([self.place()] * 4, links) == []

    def test_versions_differ(self):
        other = (("tfring", "0.1.0"), ("TensorFlow", "2.20.0"))
        places = [self.place(), self.place(), self.place(versions=other)]
        (advice,) = self_test._advice(places, [])
        assert advice.startswith(
            "TensorFlow is 2.21.0 on rank 0, but not on ra"
        )
        assert "rank 2" in advice

    def test_too_many_ranks(self):
        places = [self.place("node1")] * 5 + [self.place("node2")] * 2
        (advice,) = self_test._advice(places, [])
        assert advice.startswith("node1 runs 5 ranks on 4 cores")

    def test_bound_to_a_single_core(self):
        (advice,) = self_test._advice([self.place(cores=1)] * 2, [])
        assert advice.startswith("ranks 0-1 may use one core each of 4")
        assert not self_test._advice([self.place(cores=1)] * 4, [])

    def test_a_slow_link(self):
        links = [self.link(0, 10.0), self.link(1, 2.0), self.link(2, 11.0)]
        (advice,) = self_test._advice([self.place()] * 4, links)
        assert "the link of ranks 1 and 2 (node1, node1) has 2.00" in advice

    def test_what_failed_and_where(self, capsys):
        report = self_test._Report(speaks=True)
        failures = report.check("allgather", [None, "no", "no", None, "no"])
        assert failures == ["allgather, ranks 1, 2, 4: no"]
        assert report.check("broadcast", [None] * 5) == []
        lines = capsys.readouterr().out.splitlines()
        assert [line.split() for line in lines] == [
            ["allgather", "FAILED"],
            ["broadcast", "ok"],
        ]
