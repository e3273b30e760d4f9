"""Evaluation and prediction by all ranks, each on its part of the data."""

from tfring.metrics.evaluation import evaluate as evaluate
from tfring.metrics.prediction import predict as predict
