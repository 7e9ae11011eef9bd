"""Every module over two real processes: the synced value is that of all rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from metric_cases import CASES, IDS, labels_for, rows, value

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Rows of the first process; the second has the rest. It may have none at all.
SHARES = {"unequal": 43, "one has none": 60}


def worker(rank, share, store, out):
    """What each of the two processes runs."""
    import torch.distributed as dist

    from metric_cases import module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {}
    for dtype in DTYPES:
        logits, labels = rows()
        logits = logits.to(dtype)
        mine = slice(0, share) if rank == 0 else slice(share, None)
        for (name, options), case in zip(CASES, IDS, strict=True):
            metric = module(name, 4, **options)
            target = labels_for(name, labels)[mine]
            for part, theirs in zip(logits[mine].split(17), target.split(17), strict=True):
                if len(part):
                    metric.update(part, theirs)
            found[f"{dtype}/{case}"] = metric.compute().item()
            # Unsynced again: this process holds its own rows, to be added to.
            for kept in metric.metric_state.values():
                if isinstance(kept, list):
                    assert sum(map(len, kept)) == len(target)
    dist.barrier()
    dist.destroy_process_group()
    Path(out).write_text(json.dumps(found))


@pytest.mark.parametrize("share", SHARES)
def test_two_processes_are_one(share, tmp_path):
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_modules_distributed import worker\n"
        "worker(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parent)]
    rest = [str(SHARES[share]), str(tmp_path / "store")]
    processes = [
        subprocess.Popen([*command, str(rank), *rest, str(out)], stderr=subprocess.PIPE, text=True)
        for rank, out in enumerate(outs)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    for out in outs:
        found = json.loads(out.read_text())
        logits, labels = rows()
        for dtype in DTYPES:
            for (name, options), case in zip(CASES, IDS, strict=True):
                wanted = value(name, logits.to(dtype), labels_for(name, labels), **options)
                # Sums of a block are rounded in its own precision before they meet in float64.
                tolerance = 1e-12 if dtype == torch.float64 else 1e-7
                assert found[f"{dtype}/{case}"] == pytest.approx(
                    wanted, rel=tolerance, abs=tolerance
                ), (case, dtype)
