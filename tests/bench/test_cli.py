"""The commands of the bench: run, status, table, list, pack, merge."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import tarfile
import warnings

import pytest
from typer.testing import CliRunner

from calibrant.bench import Store, Suite
from calibrant.cli import app
from tests.helpers.bench_cases import TINY


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs of a suite of four, made by the command."""
    folder = tmp_path_factory.mktemp("bench-cli")
    path = folder / "tiny.yaml"
    path.write_text(TINY.format(seeds=[0, 1], epochs=1, keep="predictions"))
    out = folder / "out"
    result = run("run", path, "-o", out, "--seeds", "0", "--json")
    assert result.exit_code == 0, result.output
    return path, out, result


def test_run_tells_what_happens_as_json(made):
    lines = [json.loads(line) for line in made[2].stdout.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "plan"
    assert kinds.count("done") == 2
    counts = {"done": 2, "before": 0, "failed": 0, "left": 0, "waiting": 0}
    assert lines[-1] == {"event": "end", **counts}


def test_run_says_in_a_line_what_became_and_quiet_says_nothing(made):
    path, out, _ = made
    result = run("run", path, "-o", out, "--only", "brier/seed=0")
    assert (result.exit_code, result.stdout) == (0, "tiny: 1 made before\n")
    result = run("run", path, "-o", out, "--limit-minutes", "0")
    assert result.stdout == "tiny: 2 made before, 2 left\n"
    result = run("run", path, "-o", out, "--seeds", "0-0", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_compiling_is_of_the_machine_and_leaves_the_runs_their_keys(made, monkeypatch):
    import calibrant.bench

    path, out, _ = made
    seen = {}

    def run_suite(suite, output, **how):
        seen.update(how["machine"])
        raise SystemExit

    monkeypatch.setattr(calibrant.bench, "run_suite", run_suite)
    run("run", path, "-o", out)
    assert seen["compile"] is None
    run("run", path, "-o", out, "--compile")
    assert seen["compile"] is True
    (_, spec), *_ = Suite.read(path).specs
    changed = spec.on_machine(**seen)
    assert (changed.config.compile, changed.key) == (True, spec.key)


def test_status_counts_and_estimates(made):
    path, out, _ = made
    result = run("status", out)
    assert "tiny: 2 of 4 done, 0 running, 0 failed, 2 waiting" in result.stdout
    assert "time left: about" in result.stdout
    status = json.loads(run("status", out, "--suite", path, "--seeds", "1", "--json").stdout)
    assert (status["done"], len(status["waiting"]), status["total"]) == (0, 2, 2)
    assert status["seconds_left"] > 0


@pytest.mark.parametrize(
    ("form", "sign"),
    [("markdown", "| method"), ("latex", r"\toprule"), ("csv", ","), ("html", "<table")],
)
def test_table_in_every_form(made, tmp_path, form, sign):
    result = run("table", made[1], "--format", form, "-m", "ece")
    assert result.exit_code == 0, result.output
    assert sign in result.stdout
    assert "brier" in result.stdout
    result = run("table", made[1], "--format", form, "-m", "ece", "-o", tmp_path / "t")
    assert sign in (tmp_path / "t").read_text(encoding="utf-8")


def test_table_of_calibrators_says_by_which_option_the_method_is_named(made):
    result = run("table", made[1], "--down", "calibrator")
    assert result.exit_code == 2
    assert "name it with --method (cross_entropy, brier)" in " ".join(result.stderr.split())
    shown = run("table", made[1], "--down", "calibrator", "--method", "brier")
    assert "| temperature |" in shown.stdout


def test_table_names_the_calibrators_it_does_not_show(tmp_path):
    path, out = tmp_path / "more.yaml", tmp_path / "out"
    text = TINY.format(seeds=[0], epochs=1, keep="predictions")
    path.write_text(text.replace("calibrators: [", "calibrators: [vector, "))
    assert run("run", path, "-o", out).exit_code == 0
    line = "Also measured: after vector (`--calibrator NAME` shows it)."
    assert line in run("table", out).stdout
    assert "NLL, after vector" in run("table", out, "-m", "nll", "--calibrator", "vector").stdout


def test_every_suite_that_was_run_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = TINY.format(seeds=[0], epochs=1, keep="rows")
    out = tmp_path / "out"
    for name, methods in (("mine", "brier"), ("small one", "cross_entropy")):
        path = tmp_path / "a.yaml"
        path.write_text(text.replace("name: tiny", f"name: {name}"))
        assert run("run", path, "-o", out, "--only", methods).exit_code == 0
        path.unlink()
    assert "mine: 2 of 2 done" in run("status", out, "--suite", "mine").stdout
    assert "small one: 2 of 2 done" in run("status", out, "--suite", "small one").stdout
    assert run("status", out).stdout == run("status", out, "--suite", "small one").stdout
    assert "| brier |" in run("table", out, "--suite", "mine").stdout
    lost = run("table", out, "--suite", "mien")
    assert lost.exit_code == 2
    message = " ".join(lost.stderr.split())
    assert "no suite is called 'mien'. Did you mean mine" in message
    assert "All: mine, small_one, " in message
    assert "digits" in message


def test_a_shipped_suites_name_means_another_only_where_that_was_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, path = tmp_path / "out", tmp_path / "a.yaml"
    text = TINY.format(seeds=[0], epochs=1, keep="rows").replace("name: tiny", "name: digits-short")
    path.write_text(text)
    shipped = Suite.read("digits-short")

    def named():
        return Suite.read("digits-short", out).text

    assert run("run", path, "-o", out, "--limit-minutes", "0").exit_code == 0
    assert named() == text != shipped.text
    assert run("run", "digits-short", "-o", out, "--limit-minutes", "0").exit_code == 0
    assert named() == shipped.text
    assert not list((out / "suites").glob("*.yaml"))
    assert Suite.read(out / "suite.yaml").text == shipped.text


def test_a_folder_of_suites_that_is_somebodys_own_is_left_alone(tmp_path):
    text = TINY.format(seeds=[0], epochs=1, keep="rows")
    own, other = tmp_path / "out" / "suites" / "tiny.yaml", tmp_path / "other.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(text + "# a draft\n")
    other.write_text(text)
    for path in (other, own):
        assert run("run", path, "-o", tmp_path / "out", "--limit-minutes", "0").exit_code == 0
        assert own.read_text() == text + "# a draft\n"
        assert list(own.parent.iterdir()) == [own]
    assert Suite.read("tiny", tmp_path / "out").text == own.read_text()


def test_the_suite_measured_beside_another_is_found_too(tmp_path):
    text = TINY.format(seeds=[0], epochs=1, keep="rows")
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}"))
    paths = [tmp_path / f"{name}.yaml" for name in ("one", "two")]
    run("run", paths[0], "--with", paths[1], "-o", tmp_path / "out", "--limit-minutes", "0")
    assert Suite.read("two", tmp_path / "out").name == "two"


@pytest.mark.slow
def test_progress_has_the_names_of_the_suite(tmp_path):
    path = tmp_path / "named.yaml"
    text = TINY.format(seeds=[0], epochs=1, keep="rows")
    path.write_text(text.replace("brier: {loss: brier}", "ours: {loss: 'focal(gamma=2)+0.1*mdca'}"))
    result = run("run", path, "-o", tmp_path / "out", "--only", "ours")
    assert "1/1 done: ours: digits mlp focal(gamma=2)+0.1*mdca seed 0, " in result.stderr
    lines = run("run", path, "-o", tmp_path / "out", "--on", "pool", "--json").stdout.splitlines()
    done = [json.loads(line) for line in lines if '"done"' in line]
    assert done[0]["method"] == "cross_entropy"


def test_report_is_a_page(made, tmp_path):
    result = run("report", made[1], "-o", tmp_path / "page.html")
    assert (result.exit_code, result.stdout) == (0, f"report: {tmp_path / 'page.html'}\n")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "tiny" in text
    assert "brier" in text


def test_list_names_the_shipped_suites():
    assert "digits-short" in run("list").stdout
    assert json.loads(run("list", "--json").stdout)["digits"]


def test_what_is_packed_is_merged_elsewhere(made, tmp_path):
    path, out, _ = made
    archive = tmp_path / "a.tar.gz"
    result = run("pack", out, archive, "--json")
    counts = json.loads(result.stdout)
    assert (counts["runs"], counts["bytes"]) == (2, archive.stat().st_size)
    with tarfile.open(archive) as tar:
        assert not [name for name in tar.getnames() if "predictions" in name]
    target = tmp_path / "there"
    assert json.loads(run("merge", archive, "--into", target, "--json").stdout)["runs"] == 2
    assert json.loads(run("merge", archive, out, "--into", target, "--json").stdout) == {
        "results": 0,
        "runs": 0,
        "failed": 0,
        "choices": 0,
    }
    assert Store(target / "store").frame().equals(Store(out / "store").frame())
    again = run("run", path, "-o", target, "--seeds", "0")
    assert again.stdout == "tiny: 2 made before\n"
    only_rows = tmp_path / "rows"
    run("merge", out / "store", "--into", only_rows, "--compact", "--quiet")
    assert len(Store(only_rows / "store").files()) == 1
    result = run("run", path, "-o", only_rows, "--seeds", "0")
    assert result.stdout == "tiny: 2 made before\n"


def test_choices_travel_and_none_is_overwritten(made, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(made[1], out)
    (out / "choices").mkdir()
    (out / "choices" / "tiny-0123456789ab.json").write_text('{"chosen": 1}')
    archive, target = tmp_path / "a.tar", tmp_path / "there"
    assert json.loads(run("pack", out, archive, "--json").stdout)["choices"] == 1
    assert json.loads(run("merge", archive, "--into", target, "--json").stdout)["choices"] == 1
    kept = target / "choices" / "tiny-0123456789ab.json"
    assert kept.read_text() == '{"chosen": 1}'
    kept.write_text('{"chosen": 2}')
    assert json.loads(run("merge", archive, "--into", target, "--json").stdout)["choices"] == 0
    assert kept.read_text() == '{"chosen": 2}'


def test_predictions_that_were_kept_travel_when_asked(made, tmp_path):
    run("pack", made[1], tmp_path / "a.tar", "--predictions")
    run("merge", tmp_path / "a.tar", "--into", tmp_path / "there")
    kept = sorted(path.name for path in tmp_path.glob("there/runs/*/predictions/*"))
    parts = ("test-largest.npy", "test.safetensors")
    parts += ("validation-largest.npy", "validation.safetensors")
    assert kept == [name for name in parts for _ in range(2)]
    result = run("run", made[0], "-o", tmp_path / "there", "--seeds", "0")
    assert result.stdout == "tiny: 2 made before\n"


def test_failures_travel_and_an_unfinished_run_gives_way_to_an_ended_one(made, tmp_path):
    _, out, _ = made
    target, key = tmp_path / "there", next(out.glob("runs/*/run.json")).parent.name
    shutil.copytree(out, tmp_path / "copy")
    (tmp_path / "copy" / "failed").mkdir()
    (tmp_path / "copy" / "failed" / f"{'0' * 16}.json").write_text('{"kind": "error"}')
    (tmp_path / "copy" / "failed" / f"{key}.json").write_text("{}")  # done since
    (target / "runs" / key).mkdir(parents=True)
    (target / "runs" / key / "config.yaml").write_text("epochs: 3")
    summary = json.loads(run("merge", tmp_path / "copy", "--into", target, "--json").stdout)
    assert (summary["runs"], summary["failed"]) == (2, 1)
    assert (target / "runs" / key / "run.json").is_file()
    assert not (target / "failed" / f"{key}.json").exists()


def write_archive(path, *members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "name", ["../outside", "/outside", "runs/../../outside", f"runs/{'0' * 16}/../../x.json"]
)
def test_an_archive_cannot_write_anywhere_else(name, tmp_path):
    archive = write_archive(tmp_path / "bad.tar", ("store/x.parquet", b"abc"), (name, b"abc"))
    with pytest.warns(UserWarning, match="was not copied"):
        result = run("merge", archive, "--into", tmp_path / "in" / "there")
    assert result.exit_code == 2
    assert "lies outside of the archive" in result.output
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files <= {"bad.tar", ".merge.lock"}
    assert not os.path.exists("/outside")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_an_archive_with_links_is_refused(kind, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo(f"runs/{'0' * 16}/run.json")
        info.type, info.linkname = kind, "/etc/hostname"
        tar.addfile(info)
    result = run("merge", tmp_path / "a.tar", "--into", tmp_path / "there")
    assert (result.exit_code, "is a link or a device" in result.output) == (2, True)


def test_archives_that_unpack_beyond_all_measure_are_refused(tmp_path):
    sparse = tmp_path / "sparse.tar"
    with tarfile.open(sparse, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("store/x.parquet")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.size": str(6 << 30),
            "GNU.sparse.map": "0,0",
        }
        tar.addfile(info, io.BytesIO(b""))
    result = run("merge", sparse, "--into", tmp_path / "there")
    assert (result.exit_code, "is refused" in result.output) == (2, True)
    packed = tmp_path / "packed.tar.gz"
    with gzip.open(packed, "wb", compresslevel=1) as file:
        info = tarfile.TarInfo("store/x.parquet")
        info.size = 300 << 20
        file.write(info.tobuf())
    result = run("merge", packed, "--into", tmp_path / "there")
    assert (result.exit_code, "more than 200 times its size" in result.output) == (2, True)


def test_an_unfinished_run_with_a_checkpoint_stays_if_what_comes_is_damaged(made, tmp_path):
    out, target = made[1], tmp_path / "there"
    source = next(out.glob("runs/*/run.json")).parent
    names = ("config.yaml", "environment.json", "metrics.jsonl", "chosen.json", "run.json")
    whole = {name: (source / name).read_bytes() for name in names}
    manifest = json.loads((source / "files.json").read_bytes())
    whole["files.json"] = json.dumps(
        {name: manifest[name] for name in manifest if name in names}
    ).encode()
    settings = whole["config.yaml"].decode()
    damaged = [
        {"run.json": b"garbage"},
        {**whole, "run.json": b"{}"},
        {**whole, "run.json": b"[" * 100_000},
        {**whole, "metrics.jsonl": b"{}"},
        {**whole, "other.json": b"{}"},
        {**whole, "files.json": b"[]"},
        {name: whole[name] for name in names},
        {**whole, "config.yaml": settings.replace("epochs: 1", "epochs: 2").encode()},
    ]
    begun = target / "runs" / source.name / "checkpoint" / "epoch-000001.json"
    begun.parent.mkdir(parents=True)
    begun.write_text("{}")
    (begun.parents[1] / "config.yaml").write_bytes(whole["config.yaml"])
    for number, files in enumerate(damaged):
        members = [(f"runs/{source.name}/{name}", text) for name, text in files.items()]
        archive = write_archive(tmp_path / f"{number}.tar", *members)
        with pytest.warns(UserWarning, match=f"{source.name} is damaged at its source"):
            result = run("merge", archive, "--into", target, "--json")
        assert json.loads(result.stdout)["runs"] == 0, files
        assert begun.is_file()
    members = [(f"runs/{source.name}/{name}", text) for name, text in whole.items()]
    archive = write_archive(tmp_path / "whole.tar.gz", *members, mode="w:gz")
    assert json.loads(run("merge", archive, "--into", target, "--json").stdout)["runs"] == 1
    assert not begun.exists()
    assert not (target / ".merge").exists()


def test_records_and_suites_that_are_damaged_do_not_travel(tmp_path):
    archive = write_archive(
        tmp_path / "a.tar",
        (f"failed/{'0' * 16}.json", b"[" * 100_000),
        ("choices/tiny.json", b"\xff\xfe"),
        ("suite.yaml", b"\xff\xfe\x00"),
    )
    with pytest.warns(UserWarning, match="cop") as caught:
        result = run("merge", archive, "--into", tmp_path / "there", "--json")
    assert json.loads(result.stdout) == {"results": 0, "runs": 0, "failed": 0, "choices": 0}
    assert len(caught) == 3
    assert [p.name for p in (tmp_path / "there").rglob("*") if p.is_file()] == [".merge.lock"]


@pytest.mark.parametrize("seed", range(2))
def test_damaged_archives_are_a_line_and_exit_code_2(seed, made, tmp_path):
    archive, rng = tmp_path / "a.tar.gz", random.Random(seed)
    run("pack", made[1], archive)
    good = archive.read_bytes() if seed % 2 else gzip.decompress(archive.read_bytes())
    for number in range(20):
        content = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            content[rng.randrange(512 if number % 2 else len(content))] = rng.randrange(256)
        damaged = tmp_path / "damaged"
        damaged.write_bytes(content[: rng.randrange(len(content))] if number % 5 == 0 else content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run("merge", damaged, "--into", tmp_path / "there")
        assert result.exit_code in (0, 2), (result.output, result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "digts"), "Did you mean digits"),
        (("run", "digits", "--seeds", "x"), "--seeds takes whole numbers"),
        (("run", "digits", "--only", "nothing"), "no run of suite digits"),
        (("run", "digits", "--on", "moon"), "no place for runs is called 'moon'"),
        (("status", "nowhere"), "nowhere: no such folder"),
        (("status", "."), "add --suite"),
        (("pack", "nowhere", "a.tar"), "no such folder"),
        (("pack", ".", "a.zip"), "an archive ends in"),
        (("merge", "nowhere.tar", "--into", "x"), "no such file"),
        (("merge", "damaged.tar", "--into", "x"), "damaged"),
        (("table", "nowhere", "--suite", "digits", "--format", "pdf"), "--format is one of"),
    ],
)
def test_wrong_input_is_a_line_and_exit_code_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.tar").write_bytes(b"nothing")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_failed_run_is_told_and_the_exit_code_says_so(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        "defaults: {epochs: 1, batch_size: 400, device: cpu}\n"
        f"methods: {{lost: {{data: 'folder:{tmp_path}/nowhere'}}, wild: {{lr: 1.0e+18}}}}\n"
    )
    result = run("run", path, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "error: folder:" in result.stderr
    assert "--retry" in result.stderr
    result = run("run", path, "-o", tmp_path / "out", "--only", "wild")
    assert (result.exit_code, "diverged" in result.stderr) == (0, True)
    assert result.stdout == "suite: 1 diverged\n"  # a result, which is told apart from a failure
    assert "0 of 2 done, 0 running, 2 failed" in run("status", tmp_path / "out").stdout
