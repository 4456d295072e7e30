"""The pages keep their promises: their Python runs, their commands are understood, and the names they use exist.

The Python blocks of a page run one after the other, as a reader would run them, in an empty directory. `learn` makes
one update there, however many steps the page asks for. A block that is not meant to run has the line
`<!-- not run: the reason -->` above it, which readers do not see.
"""

import itertools
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import tyro

import bipars
from bipars.cli import main
from fake_runs import GOOD, fake_cell

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text() for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
}
del PAGES["CHANGELOG.md"]  # tells of what was


BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^\n]+ -->\n)?^```(?P<language>\w*)\n(?P<fenced>.*?)^```$"
    r"|(?P<indented>(?:^ {4}[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str | None
    """What stands after the fence; of an indented block, nothing."""
    line: int
    code: str
    runs: bool


def blocks(text):
    """The code blocks of a page, between fences or indented by four."""
    for found in BLOCK.finditer(text):
        place = "indented" if found["fenced"] is None else "fenced"
        line = text.count("\n", 0, found.start(place)) + 1
        yield Block(found["language"], line, textwrap.dedent(found[place]), found["mark"] is None)


def python_of(page):
    return [block for block in blocks(PAGES[page]) if block.language == "python" and block.runs]


def typed_in(page):
    """The commands of a page's blocks, each as the words after `bipars`."""
    for block in blocks(PAGES[page]):
        if block.language == "python" or not block.runs:
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            for part in re.split(r" (?:&&|[|>]) ", line.partition(" #")[0]):
                if part.startswith("bipars "):
                    yield shlex.split(part)[1:]


def spans_of(page):
    """The code that stands in a page's sentences."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", PAGES[page]))


COMMANDS = [(page, " ".join(words)) for page in PAGES for words in typed_in(page)]


def test_pages_are_read_as_they_are_written():
    text = """
Sentence with `bipars list`.

    bipars train --out x \\
        --env y    # it's a comment

<!-- not run: it needs a cluster -->
```python
1 / 0
```

```python
pass


pass
```
"""
    indented, not_run, run = blocks(text)
    assert indented == Block(None, 4, "bipars train --out x \\\n    --env y    # it's a comment\n", True)
    assert not_run == Block("python", 9, "1 / 0\n", False)
    assert run == Block("python", 13, "pass\n\n\npass\n", True)
    assert len(COMMANDS) > 40
    assert {page for page in PAGES if python_of(page)} >= {"README.md", "docs/environments.md", "docs/suites.md"}


# Links and lines

LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
LINKED = {**PAGES, "CHANGELOG.md": (ROOT / "CHANGELOG.md").read_text()}


def anchors(text):
    """Of a page's headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_anchors_are_named_as_on_github():
    assert anchors("# The library's `a.b`: two-fold\n```\n# none\n```\n## In Python\n") == {
        "#the-librarys-ab-two-fold",
        "#in-python",
    }


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(LINKED[page]):
        if "://" in target:
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
        assert (ROOT / path).exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(LINKED[path]), f"{page} links to {target}{anchor}"


@pytest.mark.parametrize("page", LINKED)
def test_lines_are_short(page):
    """All but those of tables and those that end in a link, which cannot be broken."""
    for line in LINKED[page].splitlines():
        assert len(line) <= 120 or line.startswith("|") or LINK.search(line), line


# The site


def test_every_public_name_is_in_the_reference():
    pages = "".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
    documented = set(re.findall(r"^::: bipars\.(\S+)$", pages, re.MULTILINE))
    assert documented >= set(bipars.__all__) - {"__version__", "envs"} | {"sb3.ShapedPPO"}
    assert documented >= {"envs.from_gymnax", "envs.from_brax", "envs.register"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


QUIET = {"NO_MKDOCS_2_WARNING": "1"}
"""What Material for MkDocs says of its own future."""


def test_the_site_has_every_page(site):
    for page in PAGES:
        if page.startswith("docs/"):
            assert (site / page.removeprefix("docs/")).with_suffix(".html").exists(), page
    assert (site / "contributing.html").exists()
    assert "Unreleased" in (site / "changelog.html").read_text()


def test_the_site_has_what_docstrings_say(site):
    assert bipars.RewardTerm.__doc__.partition(";")[0] in (site / "api" / "terms.html").read_text()
    assert "deterministic" in (site / "api" / "agent.html").read_text()  # of predict, which BiPaRS inherits


def test_the_site_loads_nothing_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?https?://[^>]*>")
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?://", sheet.read_text()), sheet


def test_a_broken_link_stops_the_site(tmp_path):
    pytest.importorskip("material")
    for name in ("docs", "results", "src", "mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "site_hooks.py").write_text((ROOT / "docs" / "site_hooks.py").read_text())
    (tmp_path / "docs" / "index.md").write_text("[gone](nowhere.md) and [elsewhere](../results/nowhere)")
    (tmp_path / "mkdocs.yml").unlink()
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | QUIET, capture_output=True, text=True)
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
    assert "../results/nowhere" in done.stderr


# Python


def finished_runs(path):
    fake_cell(path, "mgl", GOOD, weight=1.0)


THERE_BEFORE = {"docs/suites.md": {"runs/fig3": finished_runs}}
"""What a page's reader has by then."""
PACKAGES = {
    "README.md": "stable_baselines3",
    "docs/monks.md": "pettingzoo",
    "docs/suites.md": "polars",
    "docs/your-trainer.md": "stable_baselines3",
}
"""What a page tells its reader to install."""


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    if page in PACKAGES:
        pytest.importorskip(PACKAGES[page])
    learn = bipars.BiPaRS.learn
    monkeypatch.setattr(bipars.BiPaRS, "learn", lambda self, total_timesteps, **more: learn(self, 1, **more))
    if PACKAGES.get(page) == "stable_baselines3":
        ppo = pytest.importorskip("stable_baselines3").PPO
        learn_ppo = ppo.learn
        monkeypatch.setattr(ppo, "learn", lambda self, total_timesteps, **more: learn_ppo(self, 1, **more))
    monkeypatch.chdir(tmp_path)
    for path, make in THERE_BEFORE.get(page, {}).items():
        make(tmp_path / path)
    names = {"__name__": "page"}
    for block in python_of(page):
        code = "\n" * (block.line - 1) + block.code  # so that a traceback has the page's own lines
        exec(compile(code, ROOT / page, "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_python_stands_between_fences(page):
    """Where it is run, that is."""
    for block in blocks(PAGES[page]):
        if block.language != "python":
            assert not re.search(r"^(import|from) |\bbipars\.\w+\(", block.code, re.MULTILINE), block.code


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_calls_by_name_exists(page):
    for span in spans_of(page):
        for name in re.findall(r"\bbipars(?:\.[A-Za-z_]\w*)+", span):
            pkgutil.resolve_name(name)


# Commands


class Understood(Exception):  # noqa: N818
    """The command line was read to its end, but for the words that are given. Nothing was done."""


@pytest.fixture
def only_read(monkeypatch):
    read = tyro.cli

    def stop(*arguments, **settings):
        _, unknown = read(*arguments, **settings | {"return_unknown_args": True})
        raise Understood(*unknown)

    monkeypatch.setattr(tyro, "cli", stop)


@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_a_page_is_understood(page, command):
    with pytest.raises(Understood) as reading:
        main(command.split())
    assert reading.value.args == ()


TRAININGS = [(page, command) for page, command in COMMANDS if command.startswith("train ")]


@pytest.mark.parametrize(("page", "command"), TRAININGS)
def test_a_training_of_a_page_would_start(page, command, tmp_path, monkeypatch, capfd):
    """Its settings belong together. `--weights-from` names runs that are not there, so that much is left out."""
    if re.search(r"--env (Hopper|HalfCheetah)", command):
        pytest.importorskip("mujoco")
    potentials, terms = ModuleType("my_potentials"), ModuleType("my_terms")
    potentials.height = lambda obs: obs[0]
    terms.calm = lambda obs, action, next_obs, info: -abs(next_obs[2])
    monkeypatch.setitem(sys.modules, "my_potentials", potentials)
    monkeypatch.setitem(sys.modules, "my_terms", terms)
    monkeypatch.setattr("bipars.suite.finish.run_locally", lambda runs, workers, report: False)
    monkeypatch.chdir(tmp_path)
    words = re.sub(r"--weights-from \S+", "", command).split()
    assert main(words) == 130, capfd.readouterr().err  # as if it were stopped at once


def suites_of(words):
    """The shipped suites that a command names."""
    verbs = {"run", "show", "list", "status", "export", "template"}
    if words[:1] != ["suite"] or set(words[1:2]) & (verbs - {"run", "show"}):
        return set()
    names = itertools.takewhile(lambda word: not word.startswith("--"), words[1:])
    return {name for name in names if name not in verbs and not name.endswith(".toml")}


TYPED = [command.split() for _, command in COMMANDS]
TYPED += [span.split()[1:] for page in PAGES for span in spans_of(page) if span.startswith("bipars ")]
SUITES = set().union(*map(suites_of, TYPED))


@pytest.mark.parametrize("name", sorted(SUITES))
def test_a_suite_of_a_page_exists(name):
    assert main(["suite", "show", name]) == 0


WHOLE = [
    ["train", "--out", "x"],
    ["resume", "x"],
    ["suite", "run", "x", "--out", "x"],
    ["suite", "show", "x"],
    ["suite", "status", "x"],
    ["suite", "export", "x"],
    ["suite", "list"],
    ["suite", "template"],
    ["list"],
    ["demo"],
    ["bench", "cartpole"],
    ["monks"],
    ["report", "x"],
    ["watch", "x"],
    ["render", "x"],
    ["export", "x"],
    ["verify", "x"],
]
"""Every command with as little as it needs."""


def knows(whole, flag):
    try:
        main([*whole, flag])
    except Understood as reading:
        return not reading.args
    except SystemExit:  # it is --help, or its value is missing
        return True


@pytest.mark.usefixtures("only_read")
def test_a_flag_that_does_not_exist_is_found():
    for whole in WHOLE:
        assert not knows(whole, "--no-such-flag")
        with pytest.raises(Understood):
            main(whole)


@pytest.mark.usefixtures("only_read")
@pytest.mark.parametrize("page", PAGES)
def test_flags_in_sentences_exist(page):
    """Of the command they are named with; alone, of any."""
    for span in spans_of(page):
        words = span.split()
        if words[0] == "bipars" and words[1:]:
            depth = 3 if words[1] == "suite" and words[2:] else 2
            whole = [whole for whole in WHOLE if whole[: depth - 1] == words[1:depth]]
            assert whole, f"{page} has `{span}`, and there is no such command"
        elif span.startswith("--"):
            whole = WHOLE
        else:
            continue
        for flag in re.findall(r"(?<!\S)--[a-z][a-z0-9.-]*[a-z0-9](?=[\s=]|$)", span):
            assert any(knows(each, flag) for each in whole), f"{page} has {flag} in `{span}`, which does not exist"
