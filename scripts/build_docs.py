"""Copy docs/ to build/docs for the site builder, with the repository's files that pages link to.

    python scripts/build_docs.py           # copy; `make docs` then builds the site
    python scripts/build_docs.py --check   # check the built site: links and titles

Pages link to files of the repository by relative paths, which a repository browser can follow.
The site has a copy of each: Markdown as a page, other text as a page with its lines.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
OUTSIDE = "repository"  # the site's folder of files from outside docs/
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", flags=re.M | re.S)
LINK = re.compile(r"(\]\(|src=\"|href=\")([^)\"\s#]+)(#[^)\"\s]*)?")


def find_links(text: str) -> list[re.Match[str]]:
    """Return the relative links of a Markdown page; those in code do not count."""
    blank = FENCE.sub(lambda match: " " * len(match[0]), text)
    blank = re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), blank)
    return [match for match in LINK.finditer(blank) if not urlsplit(match[2]).scheme]


def list_anchors(text: str) -> set[str]:
    """Return the places of a Markdown page that a link can lead to: headings, ids, objects."""
    headings = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), flags=re.M)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings]
    named = re.findall(r"""(?:\bid="|^::: |\{#)([\w.-]+)""", text, flags=re.M)
    return {*slugs, *named}


def list_missing_targets(page: Path) -> list[str]:
    """Return the links of a Markdown page to files, or places of pages, that do not exist."""
    missing = []
    for match in find_links(page.read_text(encoding="utf-8")):
        target, anchor = page.parent / match[2], (match[3] or "#")[1:]
        lost = not target.exists()
        if not lost and anchor and target.suffix == ".md":
            lost = anchor not in list_anchors(target.read_text(encoding="utf-8"))
        if lost:
            missing.append(match[2] + (match[3] or ""))
    return missing


class Stage:
    """Copies pages and what they link to."""

    def __init__(self, folder: Path = STAGE) -> None:
        self.folder = folder
        self.waiting: list[Path] = []
        self.done: set[Path] = set()

    def place_of(self, source: Path) -> Path:
        """Return where the site's copy of a file lies."""
        if source.is_relative_to(DOCS):
            return self.folder / source.relative_to(DOCS)
        inner = self.folder / OUTSIDE / source.relative_to(ROOT)
        if source.is_dir():
            return inner / "index.md"
        if source.name == "README.md":
            return inner
        return (
            inner
            if source.suffix in (".md", ".png", ".svg")
            else inner.with_name(inner.name + ".md")
        )

    def copy(self, source: Path) -> None:
        """Copy one file; Markdown has its links rewritten."""
        place = self.place_of(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            text = self.list_folder(source)
        elif source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
        elif source.is_relative_to(DOCS) or source.suffix in (".png", ".svg"):
            shutil.copyfile(source, place)
            return
        else:
            text = self.show_file(source)
        if source.suffix == ".md" or source.is_dir():
            text = self.rewrite(text, source, place)
        place.write_text(text, encoding="utf-8")

    def list_folder(self, folder: Path) -> str:
        """Return a page that lists a folder's files; its README comes first."""
        readme = folder / "README.md"
        names = sorted(
            path.name
            for path in folder.iterdir()
            if path.is_file() and not path.name.startswith(".")
        )
        shown = [
            f"- [{name}]({name})"
            for name in names
            if Path(name).suffix in (".py", ".yaml", ".md", ".csv")
        ]
        head = f"# {folder.relative_to(ROOT).as_posix()}\n\n"
        if readme.exists():
            return readme.read_text(encoding="utf-8")
        return head + "\n".join(shown) + "\n"

    def show_file(self, source: Path) -> str:
        """Return a page with a file's text."""
        name = source.relative_to(ROOT).as_posix()
        text = source.read_text(encoding="utf-8", errors="replace")
        if len(text) > 400_000:
            return f"# {name}\n\nToo long to show here; see the repository.\n"
        language = LANGUAGES.get(source.suffix, "text")
        return f'# {name}\n\n~~~~~~ {{ .{language} linenums="1" }}\n{text.rstrip()}\n~~~~~~\n'

    def rewrite(self, text: str, source: Path, place: Path) -> str:
        """Return a page whose relative links lead to the site's copies."""
        base = source if source.is_dir() else source.parent
        parts, end = [], 0
        for match in find_links(text):
            target = (base / unquote(match[2])).resolve()
            if not target.exists() or not target.is_relative_to(ROOT):
                continue
            if target not in self.done:
                self.done.add(target)
                self.waiting.append(target)
            link = os.path.relpath(self.place_of(target), place.parent).replace(os.sep, "/")
            parts += [text[end : match.start(2)], link]
            end = match.end(2)
        # A comment at the start of a line would end the paragraph.
        return re.sub(
            r"<!-- (?:/results|results:.*?|not run: .*?|file: \S+|exit code \d|"
            r"outputs of code \w+) -->\n?",
            "",
            "".join([*parts, text[end:]]),
        )

    def run(self) -> None:
        """Copy every page of docs/ and what they link to."""
        shutil.rmtree(self.folder, ignore_errors=True)
        pages = [path.resolve() for path in DOCS.rglob("*") if path.is_file()]
        self.waiting = [path for path in pages if path.suffix in (".md", ".png", ".svg", ".bib")]
        self.done = set(self.waiting)
        while self.waiting:
            self.copy(self.waiting.pop())


class Page(HTMLParser):
    """The title, ids and links of a built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.title, self.ids, self.links, self._in_title = "", set(), [], False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag names and where it leads."""
        attributes = dict(attrs)
        self._in_title |= tag == "title"
        self.ids |= {attributes.get("id"), attributes.get("name") if tag == "a" else None}
        for name in ("href", "src"):
            if attributes.get(name) and tag in ("a", "img", "script", "link"):
                self.links.append(attributes[name])

    def handle_endtag(self, tag: str) -> None:
        """Note the end of the title."""
        if tag == "title":
            self._in_title = False

    def handle_data(self, data: str) -> None:
        """Keep the title."""
        if self._in_title:
            self.title += data


def check_site(site: Path = SITE) -> list[str]:
    """Return what is wrong with the built site: missing titles, files and anchors; other hosts."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    faults = [] if pages else [f"{site} has no page: run `make docs` first"]
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if not page.title.strip():
            faults.append(f"{name}: no title")
        for link in page.links if name != "404.html" else ():
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                base = site if parts.path.startswith("/") else path.parent
                target = (base / unquote(parts.path).lstrip("/")).resolve()
                target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                faults.append(f"{name}: broken link {link}")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].ids
            ):
                faults.append(f"{name}: no such place {link}")
    return faults


def main() -> int:
    """Copy the pages, or check the built site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="Check the built site.")
    if not parser.parse_args().check:
        Stage().run()
        return 0
    faults = sorted(set(check_site()))
    print(
        "\n".join(faults) or "every link leads somewhere, every page has a title", file=sys.stderr
    )
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
