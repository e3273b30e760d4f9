"""Fingerprints of weights, and the errors of ranks that differ."""

import numpy as np
import pytest
import tensorflow as tf

from tfring._keras.fit_agreement import check_alike
from tfring._state.weights import fingerprint, fingerprint_of_all


def print_of(array):
    return fingerprint(tf.Variable(array))


@pytest.mark.parametrize("count", [1, 4095, 8192, 40000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool"])
def test_any_bit_changes_a_fingerprint(count, dtype):
    array = tf.cast(np.arange(count) % 2, dtype).numpy()
    changed = [array]
    for place in {0, count // 2, count - 1}:
        for bit in {0} if dtype == "bool" else {0, 7}:
            changed.append(array.copy())
            changed[-1].view(np.uint8)[place * array.itemsize] ^= 1 << bit
    assert len(set(map(print_of, changed))) == len(changed)
    assert print_of(array) == print_of(array.copy())


def test_words_that_change_places():
    array = np.arange(3.0 * 4096)
    for places in ([5, 6], [5, 4096 + 5], [5, 8192 + 7]):
        other = array.copy()
        other[places] = array[places[::-1]]
        assert print_of(array) != print_of(other)


def test_shapes_and_dtypes_are_part_of_it():
    arrays = [
        np.zeros(shape, dtype)
        for shape in ((6,), (2, 3), (3, 2), ())
        for dtype in ("float32", "int32")
    ]
    assert len({print_of(array) for array in arrays}) == len(arrays)
    one, other = tf.Variable(1.0), tf.Variable(2.0)
    assert fingerprint_of_all([one, other]) != fingerprint_of_all([other, one])


def test_ranks_that_are_alike():
    check_alike({r: {"epochs": 1, "callbacks": ["A"]} for r in range(3)}, "")
    # A fact that a rank does not know is no difference.
    check_alike({0: {"epochs": None}, 1: {"epochs": 4}}, "")


def test_all_that_differs_is_said_with_its_ranks():
    facts = {
        r: {"epochs": 2 + (r > 9), "number of the epoch": 0} for r in range(20)
    }
    facts[4]["number of the epoch"] = 7
    with pytest.raises(RuntimeError) as error:
        check_alike(facts, "at the beginning")
    for part in (
        "tfring: at the beginning of fit the ranks differ",
        "Epochs: 2 on ranks 0, 1, 2, 3, 4, 5, 6, 7, ...; 3 on ranks 10",
        "; 7 on rank 4. If one rank has loaded",
    ):
        assert part in str(error.value)
