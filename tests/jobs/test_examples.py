"""The examples run, and produce the promised output."""

import re
import sys
from pathlib import Path

import pytest
from jobs import LEAN, TFRINGRUN, WHOLE

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(run):
    """Returns a function that runs an example, and gives its output."""

    def example(name, *flags, ranks=2, status=0):
        path = EXAMPLES / name
        output = run(
            [*TFRINGRUN, "-np", ranks, sys.executable, path, *flags],
            env=WHOLE if "sklearn" in path.read_text() else LEAN,
            status=status,
        )
        warnings = ("NotBroadcast", "NotDistributed", "SameDraws")
        assert not [w for w in warnings if f"{w}Warning" in output], output
        return output

    return example


def test_keras_resume(example, tmp_path):
    def digest(output):
        assert "state identical on all ranks: yes" in output
        return re.search(r"digest ([0-9a-f]{64})$", output, re.MULTILINE)[1]

    output = example("keras_resume.py", "--checkpoints=uninterrupted")
    uninterrupted = digest(output)
    assert "beginning at epoch 1, batch 1" in output
    assert float(re.search(r"accuracy (0\.\d+)", output)[1]) > 0.9

    output = example("keras_resume.py", "--crash_in_epoch=3", status=None)
    assert "digest" not in output
    output = example("keras_resume.py")
    assert re.search(
        r"beginning at epoch [23], batch ([2-9]|\d\d)$", output, re.M
    )
    assert digest(output) == uninterrupted
    # In the directory that the job was started in; nothing else is left there.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"uninterrupted", "digits"}


@pytest.mark.thorough
def test_transformer_lm(example):
    output = example("transformer_lm.py", "--epochs=2")
    assert "starting with epoch 1" in output
    assert "weights identical on all ranks: yes" in output
    first = bits_a_letter(output)
    output = example("transformer_lm.py", "--epochs=3")
    assert "starting with epoch 3" in output
    assert "weights identical on all ranks: yes" in output
    second = bits_a_letter(output)
    assert list(first) == [1, 2]
    assert list(second) == [3]
    # Better than letter frequencies alone allow, and improving with each epoch.
    assert first[1] > first[2] > second[3]
    assert second[3] < 4.2


def bits_a_letter(output):
    epochs = re.findall(r"epoch (\d): (\d\.\d+) bits a letter", output)
    return {int(epoch): float(bits) for epoch, bits in epochs}


@pytest.mark.thorough
def test_sparse_embeddings(example):
    def results(output):
        assert "vectors identical on all ranks: yes" in output
        norms = re.search(r"norms (\S+) (\S+)", output).groups()
        ranked = re.search(r"told from strangers: (\S+)", output)[1]
        return [float(number) for number in [*norms, ranked]]

    output = example("sparse_embeddings.py")
    assert "sparse gradients: True" in output
    sparse = results(output)
    assert sparse[2] > 0.62  # 0.5 is by chance

    output = example("sparse_embeddings.py", "--sparse_as_dense")
    assert "sparse gradients: False" in output
    assert results(output) == pytest.approx(sparse, abs=0.002)


@pytest.mark.thorough
def test_sharded_embedding(example):
    def loss_of(ranks, *flags):
        output = example("sharded_embedding.py", *flags, ranks=ranks)
        rows = re.search(r"rows on rank 0: (\d+) of (\d+)", output).groups()
        assert abs(int(rows[0]) * ranks - int(rows[1])) < 2 * ranks
        epochs = re.search(r"epochs (\d to \d) on", output)[1]
        return epochs, float(re.search(r"loss (\d\.\d+)", output)[1])

    epochs, first = loss_of(2, "--epochs=2")
    assert epochs == "1 to 2"
    epochs, resumed = loss_of(3)
    assert epochs == "3 to 4"
    epochs, at_once = loss_of(1, "--file=other.keras")
    assert epochs == "1 to 4"
    assert resumed == pytest.approx(at_once, abs=1e-4)
    assert resumed < 0.9 * first


@pytest.mark.thorough
def test_process_sets(example):
    # One set has two ranks, and the second set has one.
    output = example("process_sets.py", ranks=3)
    models = re.findall(
        r"(\w+) on ranks (\[.+\]): accuracy (0\.\d+), weights identical: yes",
        output,
    )
    assert [(kind, ranks) for kind, ranks, _ in models] == [
        ("convolutions", "[0, 2]"),
        ("dense", "[1]"),
    ]
    both = re.search(r"both together: accuracy (0\.\d+)", output)[1]
    assert all(float(a) > 0.85 for a in (both, *[m[2] for m in models]))


@pytest.mark.thorough
def test_uneven_data(example):
    output = example("uneven_data.py")
    assert "state identical on all ranks: yes" in output
    # 178 samples are split between ranks: batches of 8, in 20 epochs.
    assert "batches by rank: [160, 300]" in output
    assert "steps of the optimizer: 300" in output


def test_pipeline(example):
    output = example("pipeline.py")
    assert "as in one process: yes" in output
    first, last = re.search(r"loss (\S+) (\S+)", output).groups()
    assert float(last) < float(first)


def test_tape_loop(example):
    output = example("tape_loop.py")
    assert "state identical on all ranks: yes" in output
    epochs = re.findall(r"loss (\d\.\d+), accuracy (0\.\d+)$", output, re.M)
    assert len(epochs) == 8
    assert float(epochs[-1][0]) < float(epochs[0][0]) / 4
    assert float(epochs[-1][1]) > 0.9


def test_a_horovod_script_with_another_import(example, tmp_path):
    before, after = (
        (EXAMPLES / f"horovod_{when}.py").read_text().splitlines()
        for when in ("before", "after")
    )
    changes = [
        pair for pair in zip(before, after, strict=True) if len({*pair}) > 1
    ]
    assert changes == [
        ("import horovod.tensorflow as hvd", "import tfring as hvd"),
        (
            "import horovod.tensorflow.keras as hvd_keras",
            "import tfring as hvd_keras",
        ),
    ]

    output = example("horovod_after.py", "--epochs=5")
    results = re.findall(
        r"part (\d): test accuracy (0\.\d+), same (\w+)", output
    )
    assert [(part, same) for part, _, same in results] == [
        ("1", "True"),
        ("2", "True"),
    ]
    assert all(float(accuracy) > 0.9 for _, accuracy, _ in results), output
    assert "Epoch 3: learning rate warmed up to 0.004." in output
    assert len([*tmp_path.glob("checkpoint-*.weights.h5")]) == 5


def test_keras_digits(example):
    output = example("keras_digits.py")
    assert "weights identical on all ranks: yes" in output
    rows = re.findall(r"^\[0\] ([12]) +(0\.\d+) +(\d+)$", output, re.MULTILINE)
    assert [ranks for ranks, _, _ in rows] == ["2", "1"], output
    assert all(float(accuracy) >= 0.97 for _, accuracy, _ in rows)
    # Only one of the two ranks shows a progress bar.
    assert "[0] Epoch 5/5" in output
    assert "[1] Epoch" not in output


@pytest.mark.thorough
def test_larger_than_memory(example):
    # The job fails: with an error, or because an operation of TensorFlow's
    # crashes without memory.
    example("larger_than_memory.py", "--offload=none", status=None)
    output = example("larger_than_memory.py")
    moved = re.search(r"moved in a step: (\d+) MiB", output)
    assert int(moved.group(1)) >= 64  # of 128, as TensorFlow may merge some
    first, last = re.search(r"loss (\S+) (\S+)", output).groups()
    assert float(last) < float(first)
