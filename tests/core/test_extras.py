"""A missing optional library is an error that names the pip command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calibrant.core.extras import MissingExtra, require

# What a user with the core alone meets: each line needs an extra.
USES = {
    "tables": "calibrant.Predictions.read('x.csv')",
    "metrics": "import calibrant.metrics.modules",
    "train": "calibrant.training.train(calibrant.training.Config(data='digits'), 'run')",
    "bench": "import calibrant.bench; calibrant.bench.Suite.read('digits')",
}
EXTRAS = ("pyarrow", "torchmetrics", "lightning", "PIL", "yaml", "pydantic", "filelock", "ray")


def test_the_message_names_the_extra():
    with pytest.raises(MissingExtra, match=r"training needs no_such_library: pip install 'cal"):
        require("no_such_library.part", extra="train", purpose="training")
    assert require("json", extra="train", purpose="training").loads("1") == 1


@pytest.mark.slow
@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("extra", USES)
def test_every_entrance_says_what_to_install(extra, tmp_path):
    (tmp_path / "x.csv").write_text("logit_0,logit_1,label\n0.1,0.2,1\n0.3,0.1,0\n")
    code = (
        f"import sys\nfor name in {EXTRAS!r}: sys.modules[name] = None\n"
        f"import calibrant\nimport calibrant.training\n{USES[extra]}\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert f"pip install 'calibrant[{extra}]'" in result.stderr.splitlines()[-1]
