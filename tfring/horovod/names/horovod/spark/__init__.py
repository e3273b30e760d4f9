from tfring.horovod.spark import run, run_elastic
