"""The files of examples/cluster work, tested without a cluster."""

import http.server
import json
import os
import re
import signal
import stat
import subprocess
import threading
from pathlib import Path

import jsonschema
import pytest
import yaml
from waiting import wait_until

from tfring.launcher import command_line

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SCHEMA = json.loads(
    Path(__file__).with_name("kubeflow_trainer.json").read_text()
)


@pytest.fixture
def manifests():
    text = (CLUSTER / "trainjob.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def errors(manifest):
    schema = SCHEMA | {"$ref": f"#/$defs/{manifest['kind']}"}
    return [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(
            manifest
        )
    ]


def test_the_manifest_fits_the_schema(manifests):
    assert manifests.keys() == {"TrainingRuntime", "TrainJob"}
    for manifest in manifests.values():
        assert errors(manifest) == []
    runtime, job = manifests["TrainingRuntime"], manifests["TrainJob"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    ml_policy = runtime["spec"]["mlPolicy"]
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == ml_policy["numNodes"]
    assert trainer["numProcPerNode"] == ml_policy["mpi"]["numProcPerNode"]


def test_the_elastic_job_is_one():
    text = (CLUSTER / "elastic-job.yaml").read_text()
    service, job = yaml.safe_load_all(text)
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    [container] = pod["containers"]
    program, *arguments = container["command"]
    assert program == "tfringrun"
    options = command_line.parser().parse_args(arguments)
    command_line.check_elastic(options)
    assert options.elastic
    # How Kubernetes calls the pod of index 0.
    assert options.rendezvous == (f"{name}-0.{pod['subdomain']}", 29500)
    slots = job["spec"]["completions"] * options.slots_per_host
    assert options.min_ranks < slots
    [rule] = job["spec"]["successPolicy"]["rules"]
    assert rule == {"succeededIndexes": "0"}
    assert container["env"][0]["name"] == "TFRING_ELASTIC_TOKEN"


def test_the_image_has_what_the_manifest_runs(manifests):
    dockerfile = (CLUSTER / "Dockerfile").read_text()
    for name in re.findall(r"^COPY (?:--\S+ )?(\w+) ", dockerfile, re.M):
        assert (CLUSTER / name).exists()
    assert (CLUSTER / "serve_ssh").stat().st_mode & stat.S_IXUSR
    spec = manifests["TrainingRuntime"]["spec"]
    home = spec["mlPolicy"]["mpi"]["sshAuthMountPath"].removesuffix("/.ssh")
    assert f"WORKDIR {home}\n" in dockerfile
    [node, _] = spec["template"]["spec"]["replicatedJobs"]
    [container] = node["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["serve_ssh"]
    port = container["readinessProbe"]["tcpSocket"]["port"]
    for name in ("sshd_config", "ssh_config"):
        assert re.search(
            rf"^\s*Port {port}$", (CLUSTER / name).read_text(), re.M
        )


def test_a_pod_that_has_saved_is_no_failure():
    job = yaml.safe_load((CLUSTER / "resume-job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    # Kubernetes has rules on failures for such pods alone.
    assert pod["restartPolicy"] == "Never"
    [container] = pod["containers"]
    statuses, disruption = job["spec"]["podFailurePolicy"]["rules"]
    assert statuses["onExitCodes"]["values"] == [os.EX_TEMPFAIL]
    assert statuses["onExitCodes"]["containerName"] == container["name"]
    assert statuses["action"] == disruption["action"] == "Ignore"
    program, *arguments = container["command"]
    assert program == "tfringrun"
    command_line.parser().parse_args(arguments)
    grace_seconds = float(arguments[arguments.index("--grace") + 1])
    assert grace_seconds < pod["terminationGracePeriodSeconds"]
    [mount], [volume] = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]


def write_programs(folder, programs):
    for name, text in programs.items():
        program = folder / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)


@pytest.fixture
def start_saving(tmp_path):
    """Returns a function that runs a script with a fake tfringrun.

    The fake logs its arguments to the file `log`, and saves after a signal. The
    script's `sleep` is cut short.
    """
    log = tmp_path / "log"
    programs = {
        "tfringrun": f"""
            trap 'echo saved >> {log}; exit 75' USR1 TERM
            echo "$*" >> {log}
            while :; do sleep 1; done
        """,
        "sleep": "exec /bin/sleep 0.05",
    }
    write_programs(tmp_path, programs)

    def start(*command, **env):
        job = subprocess.Popen(
            ["bash", *command], env={"PATH": f"{tmp_path}:{os.defpath}", **env}
        )
        wait_until(lambda: log.exists() and log.read_text(), 20)
        return job

    return start


def test_slurm_warns_tfringrun_in_place_of_the_script(tmp_path, start_saving):
    arguments = ["train.py", "--epochs", "3"]
    job = start_saving(CLUSTER / "resume.sbatch", *arguments, SLURM_NTASKS="8")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=20) == 75
    assert (tmp_path / "log").read_text().splitlines() == [
        "-np 8 python train.py --epochs 3",
        "saved",
    ]


def test_a_pod_that_is_asked_to_end_saves(tmp_path, start_saving):
    job = yaml.safe_load((CLUSTER / "resume-job.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    pod = start_saving("-c", 'exec "$@"', "bash", *container["command"])
    pod.terminate()
    assert pod.wait(timeout=20) == os.EX_TEMPFAIL
    assert (tmp_path / "log").read_text().splitlines() == [
        "--grace 110 -np 4 python train.py",
        "saved",
    ]


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers as the servers that announce the end of an instance."""

    is_of_ec2 = takes = False
    asked = 0

    def log_message(self, *_):
        pass

    def _answer(self, text):
        self.send_response(200 if text else 404)
        self.end_headers()
        self.wfile.write(text)

    def do_PUT(self):
        is_right = self.is_of_ec2 and self.path == "/latest/api/token"
        self._answer(b"secret" if is_right else b"")

    def do_GET(self):
        text = b""
        if self.is_of_ec2 and self.path.endswith("/spot/instance-action"):
            assert self.headers["X-aws-ec2-metadata-token"] == "secret"
            text = b'{"action": "terminate"}' if self.takes else b""
        elif not self.is_of_ec2 and self.path.endswith("/instance/preempted"):
            assert self.headers["Metadata-Flavor"] == "Google"
            text = b"TRUE" if self.takes else b"FALSE"
        type(self).asked += 1
        self._answer(text)


@pytest.mark.parametrize("is_of_ec2", [True, False])
def test_a_spot_instance_that_is_taken(tmp_path, start_saving, is_of_ec2):
    class OfThis(Provider):
        pass

    OfThis.is_of_ec2 = is_of_ec2
    with http.server.HTTPServer(("127.0.0.1", 0), OfThis) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            job = start_saving(
                *(CLUSTER / "resume-spot.sh", "-np", "4", "python", "train.py"),
                METADATA=f"http://127.0.0.1:{server.server_port}",
            )
            wait_until(lambda: OfThis.asked >= 3, 20)
            assert job.poll() is None
            OfThis.takes = True
            assert job.wait(timeout=20) == 75
        finally:
            server.shutdown()
            thread.join()
    assert (tmp_path / "log").read_text().splitlines() == [
        "-np 4 python train.py",
        "saved",
    ]


@pytest.fixture
def slurm(tmp_path):
    """Returns a function that runs train.sbatch with fake Slurm programs.

    The programs log their calls to the file `log`.
    """
    (tmp_path / "log").touch()

    def start(srun):
        programs = {
            "srun": f'echo "srun $*" >> log\n{srun}',
            "scontrol": 'echo "scontrol $*" >> log',
        }
        write_programs(tmp_path, programs)
        return subprocess.Popen(
            ["bash", CLUSTER / "train.sbatch", "train.py", "--epochs", "3"],
            cwd=tmp_path,
            env={
                "PATH": f"{tmp_path}:{os.defpath}",
                "SLURM_JOB_ID": "17",
                "SLURM_CPUS_PER_TASK": "8",
            },
        )

    start.log = tmp_path / "log"
    return start


def test_slurm_starts_the_ranks(slurm):
    job = slurm('echo "threads $TF_NUM_INTRAOP_THREADS" >> log; exit 3')
    assert job.wait(timeout=20) == 3
    ran, threads = slurm.log.read_text().splitlines()
    assert ran.startswith("srun --mpi=pmix ")
    assert ran.endswith(" python train.py --epochs 3")
    assert threads == "threads 8"


def test_a_job_whose_time_is_over_is_requeued(slurm):
    job = slurm("""
        trap 'echo saved >> log; exit 143' TERM
        echo ready >> log
        while :; do sleep 0.05; done
    """)
    wait_until(lambda: "ready" in slurm.log.read_text(), 20)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=20) == 0
    *_, saved, requeued = slurm.log.read_text().splitlines()
    assert (saved, requeued) == ("saved", "scontrol requeue 17")
