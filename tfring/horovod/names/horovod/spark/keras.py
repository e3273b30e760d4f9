"""horovod.spark.keras, which tfring does not provide."""

raise ImportError(
    "horovod.spark.keras: tfring, which has the name horovod here, has no "
    "KerasEstimator and no Store, which read by petastorm: it cannot be "
    "imported beside a pyarrow of today. Write the DataFrame as Parquet, and "
    "train by horovod.spark.run: see the guide on Spark."
)
