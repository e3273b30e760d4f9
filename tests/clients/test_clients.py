"""Packages from PyPI that import horovod, unchanged, by `tfringrun --horovod`.

`make clients` installs each into a folder of build/clients.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "build/clients"
HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(300)


def run(ranks, client, folder):
    """Returns what the ranks have written, whose weights are the same."""
    path = f"{ROOT}{os.pathsep}{CLIENTS / client}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tfring.run", "--horovod"),
            *("-np", str(ranks), sys.executable),
            str(HERE / f"{client}_program.py"),
        ],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    same = re.findall(r"WEIGHTS (\d+) SAME (\w+)", done.stdout)
    assert len(same) == ranks, done.stdout[-3000:]
    assert all(int(n) > 0 and truth == "True" for n, truth in same)
    return done.stdout


# ---- DeePMD-kit ----

ATOMS, FRAMES, STEPS = 6, 80, 200


def energy_and_forces(positions):
    """Returns the energy and the forces of pairs that repel each other."""
    energy, forces = 0.0, np.zeros_like(positions)
    for i in range(len(positions)):
        for j in range(i):
            between = positions[i] - positions[j]
            distance = np.linalg.norm(between)
            energy += np.exp(-distance)
            push = np.exp(-distance) * between / distance
            forces[i] += push
            forces[j] -= push
    return energy, forces


def make_system(folder):
    rng = np.random.default_rng(0)
    frames = folder / "system/set.000"
    frames.mkdir(parents=True)
    positions = rng.uniform(1, 8, (ATOMS, 3)) + rng.normal(
        0, 0.15, (FRAMES, ATOMS, 3)
    )
    energies, forces = zip(*map(energy_and_forces, positions), strict=True)
    np.save(frames / "coord.npy", positions.reshape(FRAMES, -1))
    np.save(frames / "energy.npy", np.array(energies))
    np.save(frames / "force.npy", np.array(forces).reshape(FRAMES, -1))
    np.save(frames / "box.npy", np.tile(20 * np.eye(3).ravel(), (FRAMES, 1)))
    (folder / "system/type.raw").write_text("0\n" * 4 + "1\n" * 2)
    (folder / "system/type_map.raw").write_text("A\nB\n")


def errors(folder, ranks, batch_size):
    """Returns the errors of energies and forces before and after training."""
    folder = folder / str(ranks)
    make_system(folder)
    training = {
        "training_data": {"systems": ["system"], "batch_size": batch_size},
        "numb_steps": STEPS,
        "seed": 1,
        "disp_freq": STEPS,
        "save_freq": STEPS,
    }
    descriptor = {
        "type": "se_e2_a",
        "sel": [8, 8],
        "rcut": 6.0,
        "rcut_smth": 1.0,
        "neuron": [8, 16],
        "axis_neuron": 4,
        "seed": 1,
    }
    loss = {
        "type": "ener",
        "start_pref_e": 0.02,
        "limit_pref_e": 1,
        "start_pref_f": 1000,
        "limit_pref_f": 1,
    }
    settings = {
        "model": {
            "type_map": ["A", "B"],
            "descriptor": descriptor,
            "fitting_net": {"neuron": [16, 16], "seed": 1},
        },
        # By default, the number of Horovod ranks multiplies it.
        "learning_rate": {
            "type": "exp",
            "start_lr": 0.005,
            "stop_lr": 1e-5,
            "decay_steps": 50,
            "scale_by_worker": "none",
        },
        "loss": loss,
        "training": training,
    }
    (folder / "input.json").write_text(json.dumps(settings))
    run(ranks, "deepmd", folder)
    lines = np.loadtxt(folder / "lcurve.out")
    # Only rank 0 writes, so each step is there once.
    assert lines[:, 0].tolist() == [0, STEPS]
    assert list(folder.glob("model.ckpt*"))
    return lines[0, 2:4], lines[-1, 2:4]


@pytest.mark.thorough
def test_deepmd_kit(tmp_path):
    _, of_one = errors(tmp_path, 1, 4)
    before, after = errors(tmp_path, 2, 2)
    assert (after < before / 2).all()
    assert (after < 2 * of_one).all()


# ---- OmniFold ----


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(1, marks=pytest.mark.thorough)]
)
def test_omnifold(ranks, tmp_path):
    output = run(ranks, "omnifold", tmp_path)
    means = [float(mean) for mean in re.findall(r"MEAN (\S+)", output)]
    np.testing.assert_allclose(means, [0.4] * ranks, atol=0.06)
