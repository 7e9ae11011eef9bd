"""Write the fixtures of tests/test_frozen.py anew from what the package does now.

    python scripts/freeze_fixtures.py                     # all of them
    python scripts/freeze_fixtures.py suites texts        # some of them
    python scripts/freeze_fixtures.py calibrators:blend   # some cases of one

``metrics``, ``fits`` and ``evaluations`` need
the data beside the checkout (or CALIBRANT_TEST_DATA). Fixtures say what the package did before
the rebuild: write one anew only where a change of results is meant.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import torch  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fixtures" / "frozen")]

import frozen  # noqa: E402

DATA = Path(os.environ.get("CALIBRANT_TEST_DATA") or ROOT.parent / "shared" / "data")


def freeze_suites():
    frozen.write_json("suites.json.gz", frozen.list_runs())


def freeze_store():
    frozen.write_json("store.json.gz", frozen.describe_store())


def freeze_calibrators(*cases):
    """Write every case anew, or the cases named and leave the others' bytes alone."""
    outputs, files = {}, {}
    if cases:
        outputs = frozen.read_arrays("calibrators.npz")
        files = frozen.read_json("calibrators.json.gz")["files"]
    else:
        shutil.rmtree(frozen.CALIBRATORS, ignore_errors=True)
        frozen.CALIBRATORS.mkdir()
    for case in cases or frozen.CASES:
        path = frozen.CALIBRATORS / f"{case}.safetensors"
        fitted = frozen.fit_case(case)
        fitted.save(path, class_names=[f"class {k}" for k in range(int(fitted.num_classes_))])
        outputs[case] = frozen.predict_case(fitted, case)
        files[case] = frozen.describe_file(path)
    frozen.write_arrays("calibrators.npz", outputs)
    environment = frozen.describe_environment()
    if cases:
        environment = frozen.read_json("calibrators.json.gz")["environment"]
    frozen.write_json("calibrators.json.gz", {"environment": environment, "files": files})


def freeze_metrics():
    rows = {"usual": frozen.METRIC_ROWS, **frozen.SLOW_ROWS}
    values = frozen.measure_sets(DATA, frozen.metrics.available())
    frozen.write_json("metrics.json.gz", {"rows": rows, "values": values})


def freeze_fits():
    outputs, again = frozen.fit_sets(DATA), frozen.fit_sets(DATA)
    for name, array in outputs.items():
        if array.tobytes() != again[name].tobytes():
            print(f"{name} differs between two fits")
    frozen.write_arrays("fits.npz", outputs)
    frozen.write_json("fits.json.gz", {"environment": frozen.describe_environment()})


def freeze_evaluations():
    outputs = {"evaluate": frozen.evaluate_sets(DATA), "compare": frozen.compare_sets(DATA)}
    frozen.write_json("evaluations.json.gz", outputs)


def freeze_texts():
    frozen.write_json("texts.json.gz", frozen.print_texts(frozen.list_texts()))


def freeze_trainings():
    runs = {case: frozen.train_digits(case) for case in frozen.TRAININGS}
    for case, value in runs.items():
        if frozen.train_digits(case) != value:
            print(f"the training {case!r} differs between two runs")
    shutil.rmtree(frozen.BEGUN, ignore_errors=True)
    frozen.begin_run(frozen.BEGUN)
    environment = frozen.describe_environment()
    frozen.write_json("trainings.json.gz", {"environment": environment, "runs": runs})


# Texts are taken from the store's fixture, which comes before them.
PARTS = {
    "suites": freeze_suites,
    "store": freeze_store,
    "calibrators": freeze_calibrators,
    "metrics": freeze_metrics,
    "fits": freeze_fits,
    "evaluations": freeze_evaluations,
    "texts": freeze_texts,
    "trainings": freeze_trainings,
}


def main(*names: str) -> None:
    for name in names or PARTS:
        part, _, cases = name.partition(":")
        PARTS[part](*(cases.split(",") if cases else ()))
        print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
