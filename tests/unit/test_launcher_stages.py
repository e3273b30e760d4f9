"""Where the seconds of a job went, for `--verbose`."""

import time

from moved_clock import Clock

from tfring.launcher import stages
from tfring.launcher.stages import Stage, Stages


def test_the_last_of_several_ranks_counts():
    clock = Clock(100.0)
    job = Stages(age_seconds=0.5, clock=clock)

    def reach_at(seconds, stage):
        clock.now = 100.0 + seconds
        job.reach(stage)

    reach_at(0.25, Stage.PREPARED)
    reach_at(0.5, Stage.STARTED)
    reach_at(1.0, Stage.STARTED)
    assert Stage.JOINING not in job
    reach_at(1.5, Stage.ENDED)
    # One rank ends before another has begun.
    reach_at(2.0, Stage.STARTED)
    reach_at(2.5, Stage.OVER)
    assert job.lines() == [
        "    0.50 s until tfringrun was loaded",
        "    0.25 s until the job was prepared",
        "    1.75 s until the last rank was started",
        "    0.00 s until the last rank had ended",
        "    0.50 s until the programs that started the ranks had ended",
        "    3.00 s in all",
    ]


def test_the_age_of_this_process():
    age, later = stages.process_age_seconds(), stages.process_age_seconds()
    assert 0 < age <= later < time.clock_gettime(time.CLOCK_BOOTTIME)
