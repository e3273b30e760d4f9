"""The examples run, and produce the promised output."""

import re
import sys
from pathlib import Path

import pytest
from jobs import JOB_SECONDS, LEAN, TFRINGRUN, WHOLE

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(start, example, *flags):
    command = [*TFRINGRUN, "-np", "2", sys.executable, EXAMPLES / example]
    needs_all = "sklearn" in (EXAMPLES / example).read_text()
    job = start([*command, *flags], env=WHOLE if needs_all else LEAN)
    output, _ = job.communicate(timeout=JOB_SECONDS)
    warnings = ("NotBroadcast", "NotDistributed", "SameDraws")
    assert not [name for name in warnings if f"{name}Warning" in output], output
    return job.returncode, output


def test_keras_resume(start, tmp_path):
    def digest(output):
        assert "state identical on all ranks: yes" in output
        return re.search(r"digest ([0-9a-f]{64})$", output, re.MULTILINE)[1]

    code, output = run(start, "keras_resume.py", "--checkpoint=a.weights.h5")
    assert code == 0, output
    uninterrupted = digest(output)
    assert "starting with epoch 1" in output
    assert float(re.search(r"accuracy (0\.\d+)", output)[1]) > 0.9

    code, output = run(start, "keras_resume.py", "--crash_in_epoch=3")
    assert code != 0
    assert "digest" not in output
    code, output = run(start, "keras_resume.py")
    assert code == 0, output
    assert "starting with epoch 3" in output
    assert digest(output) == uninterrupted
    # In the directory that the job was started in; nothing else is left there.
    names = {path.name for path in tmp_path.glob("*.h5")}
    assert names == {"a.weights.h5", "digits.weights.h5"}


@pytest.mark.thorough
def test_transformer_lm(start):
    code, output = run(start, "transformer_lm.py", "--epochs=2")
    assert code == 0, output
    assert "starting with epoch 1" in output
    assert "weights identical on all ranks: yes" in output
    first = bits_a_letter(output)
    code, output = run(start, "transformer_lm.py", "--epochs=3")
    assert code == 0, output
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
def test_sparse_embeddings(start):
    def results(output):
        assert "vectors identical on all ranks: yes" in output
        norms = re.search(r"norms (\S+) (\S+)", output).groups()
        ranked = re.search(r"told from strangers: (\S+)", output)[1]
        return [float(number) for number in [*norms, ranked]]

    code, output = run(start, "sparse_embeddings.py")
    assert code == 0, output
    assert "sparse gradients: True" in output
    sparse = results(output)
    assert sparse[2] > 0.62  # 0.5 is by chance

    code, output = run(start, "sparse_embeddings.py", "--sparse_as_dense")
    assert code == 0, output
    assert "sparse gradients: False" in output
    assert results(output) == pytest.approx(sparse, abs=0.002)


@pytest.mark.thorough
def test_sharded_embedding(start):
    def loss_of(ranks, *flags):
        command = [*TFRINGRUN, "-np", str(ranks), sys.executable]
        example = EXAMPLES / "sharded_embedding.py"
        job = start([*command, example, *flags], env=LEAN)
        output, _ = job.communicate(timeout=JOB_SECONDS)
        assert job.returncode == 0, output
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
def test_process_sets(start):
    # One set has two ranks, and the second set has one.
    command = [*TFRINGRUN, "-np", "3", sys.executable]
    job = start([*command, EXAMPLES / "process_sets.py"], env=WHOLE)
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == 0, output
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
def test_uneven_data(start):
    code, output = run(start, "uneven_data.py")
    assert code == 0, output
    assert "state identical on all ranks: yes" in output
    # 178 samples are split between ranks: batches of 8, in 20 epochs.
    assert "batches by rank: [160, 300]" in output
    assert "steps of the optimizer: 300" in output


def test_pipeline(start):
    code, output = run(start, "pipeline.py")
    assert code == 0, output
    assert "as in one process: yes" in output
    first, last = re.search(r"loss (\S+) (\S+)", output).groups()
    assert float(last) < float(first)


def test_tape_loop(start):
    code, output = run(start, "tape_loop.py")
    assert code == 0, output
    assert "state identical on all ranks: yes" in output
    epochs = re.findall(r"loss (\d\.\d+), accuracy (0\.\d+)$", output, re.M)
    assert len(epochs) == 8
    assert float(epochs[-1][0]) < float(epochs[0][0]) / 4
    assert float(epochs[-1][1]) > 0.9


def test_a_horovod_script_with_another_import(start, tmp_path):
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

    code, output = run(start, "horovod_after.py", "--epochs=5")
    assert code == 0, output
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


def test_keras_digits(start):
    command = [*TFRINGRUN, "-np", "2", sys.executable]
    job = start([*command, EXAMPLES / "keras_digits.py"], env=WHOLE)
    output, _ = job.communicate(timeout=JOB_SECONDS)
    assert job.returncode == 0, output
    assert "weights identical on all ranks: yes" in output
    rows = re.findall(r"^\[0\] ([12]) +(0\.\d+) +(\d+)$", output, re.MULTILINE)
    assert [ranks for ranks, _, _ in rows] == ["2", "1"], output
    assert all(float(accuracy) >= 0.97 for _, accuracy, _ in rows)
    # Only one of the two ranks shows a progress bar.
    assert "[0] Epoch 5/5" in output
    assert "[1] Epoch" not in output


@pytest.mark.thorough
def test_larger_than_memory(start):
    # By an error, or by the end of the process where an operation of
    # TensorFlow's does not survive it.
    code, _ = run(start, "larger_than_memory.py", "--offload=none")
    assert code != 0
    code, output = run(start, "larger_than_memory.py")
    assert code == 0, output
    moved = re.search(r"moved in a step: (\d+) MiB", output)
    assert int(moved.group(1)) >= 64  # of 128, as TensorFlow may merge some
    first, last = re.search(r"loss (\S+) (\S+)", output).groups()
    assert float(last) < float(first)
