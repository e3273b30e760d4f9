"""`tfring.spark.run`: starts a function on ranks that Spark's tasks carry.

pyspark is imported when a function is called.
"""

from tfring.spark.run import run as run
