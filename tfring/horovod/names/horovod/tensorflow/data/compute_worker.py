"""horovod.tensorflow.data.compute_worker, on any network, as in Horovod."""

import functools

from tfring.data import compute_worker

main = functools.partial(compute_worker.main, trusted_network=True)

if __name__ == "__main__":
    options = vars(compute_worker.parser().parse_args())
    main(**{**options, "trusted_network": True})
