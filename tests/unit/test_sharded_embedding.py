"""ShardedEmbedding in one process."""

import keras
import pytest
from programs import run_python

import tfring
from tfring.layers import ShardedEmbedding


def test_config_and_shapes():
    layer = ShardedEmbedding(
        9, 4, keras.initializers.RandomNormal(seed=2), mask_zero=True, name="w"
    )
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert again.get_config() == layer.get_config()
    assert layer.get_config()["embeddings_initializer"]["config"]["seed"] == 2
    assert layer.compute_output_shape((None, 3)) == (None, 3, 4)
    spec = layer.compute_output_spec(keras.KerasTensor((None, 3), "int32"))
    assert (spec.shape, spec.dtype) == ((None, 3, 4), "float32")
    assert not layer.supports_jit


@pytest.mark.parametrize("sizes", [(0, 4), (9, 0), (9.0, 4), (True, 4)])
def test_sizes(sizes):
    with pytest.raises(ValueError, match="must be a positive integer, got"):
        ShardedEmbedding(*sizes)


def test_it_needs_a_job(no_job):
    with pytest.raises(tfring.NotInitializedError, match=r"tfring\.init"):
        keras.Sequential([keras.Input((3,)), ShardedEmbedding(9, 4)])


def test_a_program_that_only_loads(initialized, tmp_path):
    path = str(tmp_path / "model.keras")
    layers = [keras.Input((3,), dtype="int32"), ShardedEmbedding(9, 4)]
    layers += [tfring.SyncBatchNormalization(), keras.layers.Dense(1)]
    keras.Sequential(layers).save(path)
    program = (
        "import tfring; tfring.init(); "
        f"print(len(tfring.load_model({path!r}).layers))"
    )
    ended = run_python("-c", program)
    assert ended.stdout.split() == ["3"], ended.stderr
