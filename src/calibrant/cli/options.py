"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Scores = Annotated[
    bool | None,
    typer.Option(
        "--logits/--probs",
        help="What a bare array holds. Files whose own names say need neither.",
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="File of labels, where FILE holds none.", metavar="FILE"),
]
Ignored = Annotated[
    int | None, typer.Option(help="Leave out rows with this label, such as -100.", metavar="N")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        help="A metric to compute, in place of the usual ones; repeat it for more. "
        "`calibrant metrics` lists them.",
        metavar="NAME",
    ),
]
Bins = Annotated[int, typer.Option(min=1, help="Bins of every binned metric.", metavar="N")]
Resamples = Annotated[
    int, typer.Option(min=100, help="Resampled sets behind the intervals.", metavar="N")
]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.", metavar="N")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")]
