"""horovod.tensorflow.data.compute_worker."""

from tfring.data.compute_worker import main

if __name__ == "__main__":
    main()
