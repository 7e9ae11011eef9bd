"""Training in two processes, and the train command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("lightning")
from safetensors.torch import load_file
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.training import Run

QUICK = ["--epochs", "3", "--device", "cpu", "--batch-size", "50", "--lr", "0.05"]
QUICK += ["--set", "model_options={hidden: [32]}"]


def free_port():
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        return socket_.getsockname()[1]


def in_two_processes(folder, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += [
        f"--master-port={free_port()}",
        "-m",
        "calibrant",
        "train",
        "-o",
        str(folder),
    ]
    command += [*QUICK, "--devices", "2", *options]
    result = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result


@pytest.mark.slow
def test_two_processes_train_one_network(tmp_path):
    in_two_processes(tmp_path / "run", "--quiet", "--no-report", "--loss", "crl")
    run = Run(tmp_path / "run")
    assert run.outcome["figures"]["test_accuracy"] > 0.8
    assert [line["epoch"] for line in run.metrics] == [1, 2, 3]
    assert run.config.devices == 2
    # Both processes' rows are in the history: nearly every one was seen once an epoch.
    held = load_file(run.folder / "checkpoint" / "epoch-000003.safetensors")
    (seen,) = [value[1] for name, value in held.items() if name.endswith("history.counts")]
    assert (seen >= 2).float().mean() > 0.9


@pytest.mark.slow
def test_two_processes_with_layers_that_freeze(tmp_path):
    in_two_processes(tmp_path / "run", "--quiet", "--no-report", "--recipe", "plp")
    run = Run(tmp_path / "run")
    assert run.metrics[-1]["frozen_layers"] > 0
    assert run.outcome["figures"]["test_accuracy"] > 0.8


@pytest.mark.slow
def test_two_processes_make_an_ensemble_and_one_speaks(tmp_path):
    options = ["--recipe", "deep_ensemble", "--set", "recipe_options={members: 2}", "--json"]
    process = in_two_processes(tmp_path / "run", *options)
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 1, 2, 3, 3]  # two members, the outcome
    assert lines[-1]["epochs"] == [3, 3]
    assert (tmp_path / "run" / "report.html").is_file()


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(app, ["train", *arguments])

    def test_trains_reports_and_resumes(self, tmp_path):
        folder = str(tmp_path / "run")
        result = self.run("-o", folder, *QUICK, "--loss", "focal")
        assert result.exit_code == 0, result.output
        assert "loss: focal" in result.output  # the settings, printed back in full
        assert "eval_batch_size: 1024" in result.output
        assert "reported epoch: 3 (last)" in result.output
        page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
        assert "<html" in page
        again = self.run("-o", folder, *QUICK, "--loss", "focal", "--json")
        assert again.exit_code == 0
        outcome = json.loads(again.stdout.splitlines()[-1])
        assert outcome["figures"]["test_accuracy"] > 0.8

    def test_settings_from_a_file_and_flags(self, tmp_path):
        (tmp_path / "s.yaml").write_text("epochs: 9\nloss: brier\nlr: 1e-2\n")
        result = self.run(
            str(tmp_path / "s.yaml"), "-o", str(tmp_path / "run"), "--no-report", "--json", *QUICK
        )
        assert result.exit_code == 0, result.output
        config = Run(tmp_path / "run").config
        assert (config.epochs, config.loss, config.lr) == (3, "brier", 0.05)
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        assert [line["epoch"] for line in lines[:3]] == [1, 2, 3]
        assert not (tmp_path / "run" / "report.html").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--set", "epochz=3"], "did you mean epochs"),
            (["--set", "epochs"], "NAME=VALUE"),
            (["--set", "epochs=[1"], "--set epochs: not YAML"),
            (["--loss", "focl"], "Did you mean focal"),
            (["--model", "resnet81"], "Did you mean resnet18"),
            (["--recipe", "mixupp"], "Did you mean mixup"),
            (["--data", "digit"], "Did you mean digits"),
            (["--lr", "1e12"], "lower lr"),
        ],
    )
    def test_mistakes_are_a_line(self, arguments, message, tmp_path):
        result = self.run(
            "-o", str(tmp_path / "run"), "--device", "cpu", "--epochs", "1", *arguments
        )
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())
        assert "Traceback" not in result.output
