"""`dp --tf train input.json`; at its end ranks compare their weights."""

import tensorflow as tf
from deepmd.main import main
from deepmd.tf.train.trainer import DPTrainer

import tfring

_train = DPTrainer.train


def _train_and_compare(self, *arguments, **options):
    _train(self, *arguments, **options)
    with self.sess.graph.as_default():
        weights = self.sess.run(tf.compat.v1.trainable_variables())
        own = [weight.tobytes() for weight in weights]
        every = tfring.allgather_object(own, session=self.sess)
    print(f"WEIGHTS {len(own)} SAME {all(each == own for each in every)}")


DPTrainer.train = _train_and_compare
main(["--tf", "train", "input.json"])
