"""Tutorials: stored outputs and figures come from the code that the page shows.

Every page and picture carries the hash of its code, which is compared for all tutorials. The
quick ones run here too; the others run with the slow tests, and with `make docs-run`.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.docs.test_pages import assert_shown

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("run_docs", ROOT / "scripts" / "run_docs.py")
run_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_docs)

TUTORIALS = sorted(run_docs.TUTORIALS.glob("*.md"))
CASES = [page for page in TUTORIALS if page.stem != "index"]
QUICK = ("drift", "llm")
NEEDS = {"lightning": "lightning"}


def stem(page):
    return page.stem


@pytest.mark.parametrize("page", CASES, ids=stem)
def test_outputs_and_figures_come_from_the_code_shown(page):
    *pictures, (_, code) = run_docs.list_code(page).items()
    text = page.read_text(encoding="utf-8")
    stamp = f"<!-- outputs of code {run_docs.digest(code)} -->"
    assert text.endswith(f"{stamp}\n"), "run scripts/run_docs.py"
    assert pictures
    for name, before in pictures:
        drawn = (page.parent / name).read_text(encoding="utf-8")
        assert drawn.endswith(f"<!-- code {run_docs.digest(before)} -->\n"), name
        assert "<svg" in drawn
    stored = {path.name for path in (page.parent / "pictures").glob(f"{page.stem}-*.svg")}
    assert stored == {Path(name).name for name, _ in pictures}


def test_each_case_of_the_list_is_a_page():
    listed = re.findall(r"\]\((\w+)\.md\)", (run_docs.TUTORIALS / "index.md").read_text())
    assert sorted(dict.fromkeys(listed)) == [page.stem for page in CASES]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem in QUICK else pytest.mark.slow) for page in CASES],
    ids=stem,
)
@pytest.mark.filterwarnings("ignore")
def test_code_prints_what_is_stored_and_ends_with_its_figures(page, tmp_path, monkeypatch, capsys):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    monkeypatch.chdir(tmp_path)
    source, names, printed = page.read_text(encoding="utf-8"), {"__name__": "page"}, ""
    for match in run_docs.BLOCK.finditer(source):
        if match[2] == "python":
            value = run_docs.run_code(match[3], page.name, names)
            printed = capsys.readouterr().out
            assert bool(printed) == source[match.end() :].lstrip().startswith("```text")
            if run_docs.PICTURE.match(source, match.end()):
                assert isinstance(getattr(value, "figure", value), Figure)
        elif match[2] == "text":
            assert_shown(match[3], printed)


def test_a_page_is_run_as_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(run_docs, "TUTORIALS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nfrom matplotlib.figure import Figure\n\nprint(1 + 1)\n```\n\n"
        "```text\nold\n```\n\n```python\nFigure().subplots()\n```\n\n![alt](pictures/p.svg)\n"
    )
    first = run_docs.run_page(page)
    assert "```text\n2\n```" in first
    page.write_text(first)
    drawn = (tmp_path / "pictures" / "p.svg").read_bytes()
    assert run_docs.run_page(page) == first
    assert (tmp_path / "pictures" / "p.svg").read_bytes() == drawn
