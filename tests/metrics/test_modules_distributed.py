"""Every torchmetrics class over two real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.helpers.metric_cases import CASES, IDS, labels_for, rows, value

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Rows of the first process; the second has the rest. It may have none at all.
SHARES = {"unequal": 43, "one has none": 60}


def worker(rank, store, out):
    """Compute every case in one of the two processes."""
    import torch.distributed as dist

    from tests.helpers.metric_cases import module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    actual = {}
    for share, dtype in product(SHARES, DTYPES):
        logits, labels = rows()
        logits = logits.to(dtype)
        mine = slice(0, SHARES[share]) if rank == 0 else slice(SHARES[share], None)
        for (name, options), case in zip(CASES, IDS, strict=True):
            metric = module(name, 4, **options)
            target = labels_for(name, labels)[mine]
            for part, theirs in zip(logits[mine].split(17), target.split(17), strict=True):
                if len(part):
                    metric.update(part, theirs)
            actual[f"{share}/{dtype}/{case}"] = metric.compute().item()
            # After compute this process holds only its own rows again.
            for state, parts in metric.metric_state.items():
                if isinstance(parts, list):
                    number = 0 if "_weights" in state else len(target)
                    assert sum(map(len, parts)) == number
    dist.barrier()
    dist.destroy_process_group()
    Path(out).write_text(json.dumps(actual))


@pytest.mark.slow
def test_two_processes_compute_the_value_of_all_rows(tmp_path):
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.metrics.test_modules_distributed import worker\n"
        "worker(int(sys.argv[2]), sys.argv[3], sys.argv[4])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parents[2])]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    for out in outs:
        actual = json.loads(out.read_text())
        logits, labels = rows()
        for dtype in DTYPES:
            for (name, options), case in zip(CASES, IDS, strict=True):
                expected = value(name, logits.to(dtype), labels_for(name, labels), **options)
                # Sums of a block are rounded in its own precision before they meet in float64.
                tolerance = 1e-12 if dtype == torch.float64 else 1e-7
                for share in SHARES:
                    assert actual[f"{share}/{dtype}/{case}"] == pytest.approx(
                        expected, rel=tolerance, abs=tolerance
                    ), (share, case, dtype)
