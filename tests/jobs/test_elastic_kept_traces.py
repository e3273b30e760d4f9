"""With `keep_traces=True` a step is traced once, whatever the size."""

import sys

import elastic_training
from elastic_launches import PATIENT, Records
from jobs import TFRINGRUN, finish, printed, wait_until


def test_a_step_is_traced_once_whatever_the_size(start, tmp_path):
    for name in ("progress", "faults"):
        (tmp_path / name).mkdir()
    (tmp_path / "faults" / "w2").write_text("step kill 20")
    job = start(
        [
            *(*TFRINGRUN, "-np", 2, "--elastic", "--min-np", 1, "--max-np", 2),
            *(sys.executable, elastic_training.__file__, tmp_path),
            *("adam", "fit"),
        ],
        env=PATIENT,
    )
    records = Records(tmp_path / "progress")
    # The first worker trains with the second one, alone, and with the joiner.
    wait_until(
        lambda: (
            {note.worker for note in records.look() if note.kind == "done"}
            == {"w1", "w2", "w3"}
        )
    )
    (tmp_path / "enough").touch()
    results = printed(finish(job))
    assert {each["worker"] for each in results} == {"w1", "w3"}
    assert len({each["digest"] for each in results}) == 1
    notes = records.look()
    sizes = {n.size for n in notes if (n.worker, n.kind) == ("w1", "done")}
    assert sizes == {1, 2}
    # The joiner traces while it builds, so that the first does not wait for it.
    traced = {(n.worker, n.step) for n in notes if n.kind == "traced"}
    assert traced == {("w1", 1), ("w2", 1), ("w3", 1)}
