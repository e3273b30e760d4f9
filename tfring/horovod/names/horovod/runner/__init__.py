from tfring import run
