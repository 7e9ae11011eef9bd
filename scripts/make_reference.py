"""Write the reference pages of the documentation from the registries, docstrings and results.

    python scripts/make_reference.py           # write docs/reference/
    python scripts/make_reference.py --check   # fail if a page would change

A page names the method's objects; their docstrings are read when the site is built. Figures come
from `replication/results` and `benchmarks/calibrator_quality.csv`, papers from `docs/papers.bib`,
and what differs from a paper from `docs/decisions.md`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "reference"
SUITE = "quick-cifar"  # the suite in which every loss and recipe was run
EXAMPLE = "cifar10-resnet18"  # predictions that ship with the package
NOTE = "<!-- Written by scripts/make_reference.py; change docstrings, not this page. -->\n"
PACKAGES = (
    ("calibrant", "The main functions"),
    ("calibrant.predictions", "Scores with what happened"),
    ("calibrant.evaluation", "Metrics with intervals, verdicts, groups, comparisons"),
    ("calibrant.calibrators", "Repair"),
    ("calibrant.metrics", "Metrics by name"),
    ("calibrant.losses", "Losses by name"),
    ("calibrant.decisions", "Decisions, sets and changed priors"),
    ("calibrant.monitor", "Watching a stream of predictions"),
    ("calibrant.report", "Pages and pictures"),
    ("calibrant.training", "Training"),
    ("calibrant.training.recipes", "Recipes by name"),
    ("calibrant.data", "Data sets"),
    ("calibrant.models", "Networks"),
    ("calibrant.bench", "Suites of many runs"),
)
INTEGRATIONS = {
    "scikit_learn": "Scorers, a display, predictions of a classifier",
    "lightning": "A callback of a Lightning `Trainer`",
    "hugging_face": "A callback of a Hugging Face `Trainer`, a model card",
    "mlflow": "Figures, pictures and the report in MLflow",
    "tensorboard": "Figures, pictures and the report in TensorBoard",
}


def write_pages() -> dict[str, str]:
    """Return the text of every page, by its path below docs/reference/."""
    from calibrant.calibrators.registry import CALIBRATORS
    from calibrant.losses.registry import LOSSES
    from calibrant.metrics.registry import METRICS
    from calibrant.training.recipes import RECIPES

    pages = {"commands.md": write_commands(), "python.md": write_python()}
    deviations = []
    for kind, registry, title, about, example in (
        ("losses", LOSSES, "Losses", ABOUT_LOSSES, 'loss = calibrant.losses.get("{}")'),
        ("recipes", RECIPES, "Recipes", ABOUT_RECIPES, 'recipe = recipes.get("{}")'),
        (
            "calibrators",
            CALIBRATORS,
            "Calibrators",
            ABOUT_CALIBRATORS,
            'calibrator = calibrant.calibrators.get("{}")',
        ),
        ("metrics", METRICS, "Metrics", ABOUT_METRICS, "calibrant.metrics.{}(preds, target)"),
    ):
        summaries = registry.available()
        lines = [f"| [`{name}`]({name}.md) | {line} |" for name, line in summaries.items()]
        table = "\n".join(["| name | when to use it |", "|---|---|", *lines])
        pages[f"{kind}/index.md"] = f"{NOTE}# {title}\n\n{about}\n\n{table}\n"
        for name, summary in summaries.items():
            pages[f"{kind}/{name}.md"] = write_method(kind, name, summary, example.format(name))
            differs = find_decisions(name)
            if differs:
                deviations.append(f"| [`{name}`]({kind}/{name}.md) | {' '.join(differs)} |")
    table = "\n".join(["| method | what calibrant does |", "|---|---|", *deviations])
    pages["deviations.md"] = (
        f"{NOTE}# Where methods differ from their papers\n\n{DEVIATIONS}\n\n{table}\n"
    )
    pages["papers.md"] = write_papers()
    return pages


ABOUT_LOSSES = """A loss stands where `nn.CrossEntropyLoss` was. `losses.get("focal+0.5*s_avuc")`
composes a primary loss with secondary ones; a secondary loss alone is added to `cross_entropy`
with its usual weight."""
ABOUT_RECIPES = """A recipe is a training procedure that a loss cannot express.
`calibrant train --recipe mixup` and `Config(recipe="mixup")` take its name; every recipe goes with
every loss, but `interleaved`, which needs a secondary one."""
ABOUT_CALIBRATORS = """A calibrator is fitted on held-out predictions. `calibrant.calibrate(val)`
chooses one;
`calibrant.calibrate(val, method="temperature")` takes the one you name."""
ABOUT_METRICS = """Each metric is a function, a name for `evaluate(metrics=[...])` and `--metric`,
and a `torchmetrics` class in `calibrant.metrics.modules`. Options can be written in the name:
`coverage_at_risk(risk=0.01)`."""
DEVIATIONS = """Papers leave points open, contradict themselves, or differ from their authors' code.
[Decisions](../decisions.md) gives the reasons; this table collects what concerns one method."""


def write_method(kind: str, name: str, summary: str, example: str) -> str:
    """Return the page of one method."""
    objects = find_objects(kind, name)
    source = Path(inspect.getsourcefile(objects[0])).relative_to(ROOT).as_posix()
    parts = [
        f"{NOTE}# {name}",
        f"**When to use it:** {summary}.",
        f"```python\n{example}\n```",
        f"Source: [`{source}`](../../../{source}). All [{kind}](index.md).",
        "## Formula and options",
        # The site shows the docstrings; a page read in a clone says how to see them.
        f"In Python: `{show_help(kind, name)}`.",
        *(f"::: {thing.__module__}.{thing.__qualname__}" for thing in objects),
    ]
    papers = find_papers(name, objects)
    parts.append("## Papers" if len(papers) > 1 else "## Paper")
    parts += [cite(paper) for paper in papers] or [
        "No paper: the method is ours or common knowledge."
    ]
    parts.append("## What we measured")
    parts.append(
        {"losses": measure_loss, "recipes": measure_recipe}.get(kind, measure_other)(name, kind)
    )
    parts.append("## How ours differs from the paper")
    differs = find_decisions(name)
    parts += [
        "\n".join(f"- {text}" for text in differs)
        or "We know of no difference; [decisions](../../decisions.md) lists those of all methods."
    ]
    return "\n\n".join(parts) + "\n"


def show_help(kind: str, name: str) -> str:
    """Return the call that prints a method's docstring."""
    if kind in ("losses", "metrics"):
        return f"help(calibrant.{kind}.{name})"
    return f'help({"calibrant." if kind == "calibrators" else ""}{kind}.get("{name}"))'


def find_objects(kind: str, name: str) -> list:
    """Return the function and the class of a method, or what there is of them."""
    if kind == "metrics":
        return [getattr(importlib.import_module("calibrant.metrics"), name)]
    module = importlib.import_module(
        {"losses": "calibrant.losses.registry", "recipes": "calibrant.training.recipes"}.get(
            kind, "calibrant.calibrators.registry"
        )
    )
    registry = getattr(module, {"losses": "LOSSES", "recipes": "RECIPES"}.get(kind, "CALIBRATORS"))
    objects = [registry.load(name)]
    if kind == "losses":
        objects.insert(0, getattr(importlib.import_module("calibrant.losses"), name))
    return objects


# Papers.


@cache
def read_papers() -> list[dict[str, str]]:
    """Read docs/papers.bib: a dictionary of fields each, with its key and BibTeX text."""
    text = (DOCS / "papers.bib").read_text(encoding="utf-8")
    papers = []
    for entry in re.findall(r"^@\w+\{.*?^\}", text, flags=re.M | re.S):
        fields = dict(re.findall(r"^  (\w+) = \{(.*?)\},?$", entry, flags=re.M))
        own_fields = r"^  (?:cited|only_in) = .*\n"
        clean = re.sub(r",\n\}$", "\n}", re.sub(own_fields, "", entry, flags=re.M))
        papers.append({**fields, "key": re.match(r"@\w+\{(\w+)", entry)[1], "bibtex": clean})
    return papers


def plain(text: str) -> str:
    """Return BibTeX text as plain text."""
    for code, letter in (
        ("\\'a", "á"),
        ('\\"u', "ü"),
        ('\\"a', "ä"),
        ("\\l", "ł"),
        ("\\L", "Ł"),
        ("\\`e", "è"),
    ):
        text = text.replace(code, letter)
    return re.sub(r"[{}]", "", text)


def list_citations(paper: dict[str, str]) -> list[str]:
    """Return what docstrings write for a paper, without parentheses."""
    if "cited" in paper:
        return paper["cited"].split("; ")
    names = [plain(name).split(",")[0] for name in paper["author"].split(" and ")]
    year = paper["year"]
    if len(names) == 1:
        return [f"{names[0]} {year}"]
    if len(names) == 2:
        return [f"{names[0]} {joiner} {names[1]} {year}" for joiner in ("and", "&")]
    return [f"{names[0]} et al. {year}"]


def find_papers(name: str, objects: list) -> list[dict[str, str]]:
    """Return the papers that the docstrings of a method cite."""
    texts = [inspect.getdoc(thing) or "" for thing in objects]
    if name not in ("tst", "vtst"):  # their module is MaC-Cal's
        texts += [inspect.getdoc(sys.modules[thing.__module__]) or "" for thing in objects[:1]]
    texts += [
        inspect.getdoc(thing.kind) or ""
        for thing in objects
        if inspect.isclass(getattr(thing, "kind", None))
    ]
    text = " ".join(" ".join(texts).split()).replace("(19", "19").replace("(20", "20")
    papers = []
    for paper in read_papers():
        only = paper.get("only_in", name).split("; ")
        cited = any(citation in text for citation in list_citations(paper))
        if (cited and name in only) or ("only_in" in paper and name in only):
            papers.append(paper)
    return papers


def cite(paper: dict[str, str]) -> str:
    """Return a citation with its link and BibTeX entry."""
    authors = [
        " ".join(reversed(plain(name).split(", "))) for name in paper["author"].split(" and ")
    ]
    who = f"{authors[0]} and others" if len(authors) > 3 else ", ".join(authors)
    where = plain(paper.get("journal") or paper.get("booktitle", ""))
    title = plain(paper["title"])
    linked = f"[{title}]({paper['url']})" if "url" in paper else f"*{title}*"
    return f"{who}: {linked}. {where}, {paper['year']}.\n\n```bibtex\n{paper['bibtex']}\n```"


def write_papers() -> str:
    """Return the page that lists every paper."""
    parts = [f"{NOTE}# Papers", "Every paper that a docstring cites, with its BibTeX entry."]
    for paper in sorted(read_papers(), key=lambda paper: plain(paper["author"])):
        parts.append(cite(paper))
    return "\n\n".join(parts) + "\n"


# Decisions.


@cache
def read_decisions() -> list[tuple[tuple[str, ...], str]]:
    """Read docs/decisions.md: the methods that each row or point names first, and its text."""
    text = (DOCS / "decisions.md").read_text(encoding="utf-8")
    decisions = []
    for names, words in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", text, flags=re.M):
        decisions.append((tuple(re.findall(r"`(\w+)`", names)), words))
    for point in re.findall(r"^- (`.*(?:\n  .*)*)", text, flags=re.M):
        head, _, words = " ".join(point.split()).partition(": ")
        names = tuple(re.findall(r"`(\w+)", head))
        decisions.append(
            (
                names,
                words
                if re.fullmatch(r"`\w+`(?:, `\w+`)*", head)
                else f"{head}{': ' if words else ''}{words}",
            )
        )
    for title, words in re.findall(r"^### ([^\n]*)\n\n(.*?)(?=\n\n|\Z)", text, flags=re.M | re.S):
        names = {"MaC-Cal": ("mac_cal", "mac_cal_head")}.get(title, ())
        decisions.append((names, " ".join(words.split())))
    return decisions


def find_decisions(name: str) -> list[str]:
    """Return what docs/decisions.md says about one method."""
    return [words.rstrip(".") + "." for names, words in read_decisions() if name in names]


# Figures.


@cache
def read_results():
    """Read the stored results of the suite."""
    sys.path.insert(0, str(ROOT))
    from replication.stored import StoredResults

    stored = StoredResults()
    return stored.get_results(SUITE), stored.read_suite(SUITE)


@cache
def read_methods() -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the losses and the recipe of each method of the suite."""
    import yaml

    from calibrant.core.method_text import parse_terms

    text = (ROOT / "replication" / "suites" / f"{SUITE}.yaml").read_text(encoding="utf-8")
    methods = {}
    for name, settings in yaml.safe_load(text)["methods"].items():
        terms = parse_terms(settings.get("loss", "cross_entropy"))
        recipe = parse_terms(settings.get("recipe", "standard"))[0].name
        methods[name] = tuple(term.name for term in terms), recipe
    return methods


def format_figure(metric: str, runs: dict[int, float]) -> str:
    """Return the mean over seeds with its standard error."""
    from calibrant.bench.tables.formatting import with_error
    from calibrant.bench.tables.statistics import mean_of

    mean = mean_of(list(runs.values()))
    return with_error(metric, mean.mean, mean.error)


def measure_runs(chosen: list[str]) -> str:
    """Return a table of the methods of the suite, after cross-entropy."""
    results, _ = read_results()
    columns = (
        ("accuracy", "none", "accuracy, %"),
        ("nll", "none", "NLL"),
        ("ece", "none", "ECE, %"),
        ("ece", "temperature", "ECE after `temperature`, %"),
    )
    values = [results.values(metric, calibrator=after) for metric, after, _ in columns]
    lines = [
        "| data | method | " + " | ".join(head for _, _, head in columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for place, name in values[0]:
        if name == "cross_entropy" or name in chosen:
            cells = [
                format_figure(metric, figures[place, name]) if (place, name) in figures else "–"
                for (metric, _, _), figures in zip(columns, values, strict=True)
            ]
            lines.append(f"| {place[0]} | `{name}` | {' | '.join(cells)} |")
    return (
        "A ResNet-18, 30 epochs, mean of three seeds ± its standard error. The suite is "
        f"[`{SUITE}`](../../../replication/suites/{SUITE}.yaml), which has each method's options; "
        "[all results](../../../replication/results/README.md).\n\n" + "\n".join(lines)
    )


def measure_loss(name: str, kind: str) -> str:
    """Return the runs of a loss, and its cost."""
    chosen = [
        method
        for method, (terms, recipe) in read_methods().items()
        if name in terms and name != "cross_entropy" and recipe == "standard"
    ]
    table = (
        measure_runs(chosen) if chosen or name == "cross_entropy" else "No training run is stored."
    )
    return f"{table}\n\nWhat it costs: [speed of the losses](../../../benchmarks/LOSSES.md)."


def measure_recipe(name: str, kind: str) -> str:
    """Return the runs of a recipe."""
    chosen = [method for method, (_, recipe) in read_methods().items() if recipe == name]
    if not chosen:
        return "No run of this recipe is stored in the suite that compares them all."
    return measure_runs([] if name == "standard" else chosen)


def measure_other(name: str, kind: str) -> str:
    """Return the figures of a calibrator or of a metric."""
    return measure_calibrator(name) if kind == "calibrators" else measure_metric(name)


def measure_calibrator(name: str) -> str:
    """Return a calibrator's figures on the outputs of real networks, beside temperature's."""
    import pandas as pd

    frame = pd.read_csv(ROOT / "benchmarks" / "calibrator_quality.csv")
    frame = frame[~frame["set"].str.startswith(("sisters", "priors"))]
    figures = frame.pivot(index="set", columns="method", values=["nll", "ece", "accuracy"])
    contestant = f"calibrant {'uncalibrated' if name == 'identity' else name}"
    if ("nll", contestant) not in figures.columns:
        return "Not in the comparison of calibrators on real networks."
    figures = figures.dropna(subset=[("nll", contestant)])
    lines = ["| calibrator | mean NLL | mean ECE, % | mean accuracy, % |", "|---|---:|---:|---:|"]
    for method in dict.fromkeys(
        ("calibrant uncalibrated", "calibrant temperature", contestant, "calibrant auto")
    ):
        nll, ece, accuracy = (
            figures[column, method].mean() for column in ("nll", "ece", "accuracy")
        )
        label = method.removeprefix("calibrant ")
        lines.append(f"| `{label}` | {nll:.4f} | {100 * ece:.2f} | {100 * accuracy:.2f} |")
    better = int((figures["nll", contestant] < figures["nll", "calibrant temperature"]).sum())
    line = ""
    if contestant not in ("calibrant temperature", "calibrant uncalibrated"):
        line = f" `{name}` has a lower NLL than `temperature` on {better} of {len(figures)}."
    return (
        f"Mean over the outputs of {len(figures)} real networks, five half/half splits each.{line} "
        "`auto` is what `calibrate` chooses. [The comparison]"
        "(../../../benchmarks/CALIBRATORS.md) has every set, with errors.\n\n" + "\n".join(lines)
    )


@cache
def read_example():
    """Return predictions that ship with the package, and their confidences as events."""
    import torch

    from calibrant import Predictions
    from calibrant.predictions import example

    predictions = example(EXAMPLE)
    confidence, predicted = torch.as_tensor(predictions.array).softmax(1).max(1)
    correct = predicted.numpy() == predictions.labels
    return predictions, Predictions.from_events(confidence.numpy(), correct, event="correct")


def measure_metric(name: str) -> str:
    """Return a metric's value and interval on predictions that ship with the package."""
    from calibrant import evaluate
    from calibrant.metrics.registry import METRICS
    from calibrant.report import formatting

    if name in ("ood_auroc", "fpr95", "miou", "kde_ece"):
        return "[How it is measured against other libraries](../../../benchmarks/RESULTS.md)."
    predictions, events = read_example()
    of_events = METRICS.load(name).__module__.endswith(".events")
    figure = evaluate(events if of_events else predictions, metrics=[name], seed=0)[name]
    value, low, high = (
        "–" if number is None else formatting.figure_text(name, number)
        for number in (figure.value, figure.low, figure.high)
    )
    what = ", of the event that it is right" if of_events else ""
    return (
        f"On `example:{EXAMPLE}`, which ships with the package{what}: **{value}**, 95% interval "
        f"{low} to {high}.\n\n"
        "How often intervals hold the truth: [coverage](../../../benchmarks/COVERAGE.md). "
        "Speed: [beside other libraries](../../../benchmarks/RESULTS.md)."
    )


# Commands and Python.


def write_commands() -> str:
    """Return every command with its options and exit codes, from the Typer application."""
    import typer

    from calibrant.cli import app, console

    codes = {
        0: "success",
        console.UNEXPECTED: "unexpected error; set `CALIBRANT_DEBUG=1` to see its traceback",
        console.BAD_INPUT: "bad usage or bad input; the message says what was found and what to do",
        console.EXCEEDED: "a limit that you set was exceeded (`--fail-...`)",
        console.INTERRUPTED: "interrupted (Ctrl-C)",
    }
    parts = [
        f"{NOTE}# Commands",
        "Every command takes `--help`. Source: [`src/calibrant/cli`](../../src/calibrant/cli).",
        "## Exit codes",
        "| code | meaning |\n|---:|---|\n"
        + "\n".join(f"| {code} | {text} |" for code, text in codes.items()),
    ]
    parts += describe_command(typer.main.get_command(app), "calibrant")
    return "\n\n".join(parts) + "\n"


def describe_command(command, path: str) -> list[str]:
    """Return the sections of a command and of those below it."""
    children = getattr(command, "commands", None)
    parts = []
    if children is None:
        text = inspect.cleandoc(command.help or "")
        parts += [f"## {path}", escape(" ".join(text.split("\n\n")[0].split()))]
        rows = [describe_parameter(parameter) for parameter in command.params]
        parts.append(
            "| argument or option | meaning | default |\n|---|---|---|\n"
            + "\n".join(filter(None, rows))
        )
    for name, child in (children or {}).items():
        parts += describe_command(child, f"{path} {name}")
    return parts


def describe_parameter(parameter) -> str:
    """Return the row of an argument or option."""
    words = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        words = f"`{(parameter.metavar or parameter.name).upper()}`"
    if words == "`--help`":
        return ""
    default = parameter.default
    shown = (
        "" if default is None or callable(default) or default in ((), [], False) else f"`{default}`"
    )
    if parameter.required:
        shown = "required"
    return f"| {words} | {escape(getattr(parameter, 'help', '') or '')} | {shown} |"


def escape(text: str) -> str:
    """Return text that a Markdown table can hold."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def write_python() -> str:
    """Return every public name of every public package."""
    parts = [
        f"{NOTE}# Python",
        "Every public function and class. On the site each line below becomes its description; "
        "without it, `help(calibrant.evaluate)` shows the same. Methods have pages of their own: "
        "[losses](losses/index.md), [metrics](metrics/index.md), "
        "[calibrators](calibrators/index.md), [recipes](recipes/index.md).",
    ]
    listed = set()
    for package, title in PACKAGES:
        try:
            module = importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        names = getattr(module, "__all__", [])
        objects = [getattr(module, name) for name in names if name != "__version__"]
        shown = []
        for thing in objects:
            home = getattr(thing, "__module__", None)
            if not (inspect.isfunction(thing) or inspect.isclass(thing)) or not str(
                home
            ).startswith("calibrant"):
                continue
            path = f"{home}.{thing.__qualname__}"
            if path not in listed and not has_own_page(package, thing):
                listed.add(path)
                shown.append(f"::: {path}")
        if shown:
            folder = package.replace(".", "/")
            parts += [
                f"## {package}",
                f"{title}. Source: [`src/{folder}`](../../src/{folder}).",
                *shown,
            ]
    for name, title in INTEGRATIONS.items():
        path = ROOT / "src" / "calibrant" / "integrations" / f"{name}.py"
        if not path.exists():
            continue
        source = f"src/calibrant/integrations/{name}.py"
        parts += [
            f"## calibrant.integrations.{name}",
            f"{title}. Source: [`{source}`](../../{source}).",
            *(f"::: calibrant.integrations.{name}.{thing}" for thing in list_definitions(path)),
        ]
    return "\n\n".join(parts) + "\n"


def list_definitions(path: Path) -> list[str]:
    """Return the public functions and classes of a file, whose library may be missing here."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [
        node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")
    ]


@cache
def list_method_objects() -> frozenset[int]:
    """Return the identities of functions and classes that have a page of their own."""
    identities = set()
    for kind in ("losses", "recipes", "calibrators", "metrics"):
        module = {
            "losses": "calibrant.losses",
            "recipes": "calibrant.training.recipes",
            "calibrators": "calibrant.calibrators",
            "metrics": "calibrant.metrics",
        }[kind]
        for name in importlib.import_module(module).available():
            identities |= {id(thing) for thing in find_objects(kind, name)}
    return frozenset(identities)


def has_own_page(package: str, thing: object) -> bool:
    """Say whether a public object is described on the page of a method."""
    return id(thing) in list_method_objects()


def main() -> int:
    """Write the pages, or compare them with those that are stored."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Fail if a page would change.")
    check = parser.parse_args().check
    pages = write_pages()
    stored = (
        {path.relative_to(OUT).as_posix() for path in OUT.rglob("*.md")} if OUT.exists() else set()
    )
    changed = [
        name
        for name, text in pages.items()
        if name not in stored or (OUT / name).read_text(encoding="utf-8") != text
    ]
    extra = sorted(stored - set(pages) - {"files.md", "index.md", "stability.md"})
    if not check:
        for name in changed:
            (OUT / name).parent.mkdir(parents=True, exist_ok=True)
            (OUT / name).write_text(pages[name], encoding="utf-8", newline="\n")
        for name in extra:
            (OUT / name).unlink()
    for name in (*changed, *extra):
        print(f"docs/reference/{name}: {'differs' if check else 'written'}")
    return int(check and bool(changed or extra))


if __name__ == "__main__":
    raise SystemExit(main())
