"""The page: one self-contained file from a template that escapes everything it is given."""

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from bipars.report.paper import paper_beside
from bipars.report.record import record
from bipars.report.text import compare_command, no_verdict, standing, what_is_missing
from bipars.results.panels import Collection, Panel
from bipars.results.summary import short_name
from bipars.results.verdict import (
    FEWEST_SEEDS,
    IGNORED_BELOW,
    IGNORED_SHARE,
    IGNORED_WHERE_IT_MATTERS,
    MATTERS_SHARE,
    SAME_WITHIN,
    Comparison,
    Estimate,
    Verdict,
    digits_for,
    verdicts,
)

NAMES = {"learned": "learned weights", "naive": "term as written", "plain": "without the term"}
DIRECTIONS = {
    "used": "as written (+)",
    "reversed": "sign flipped (-)",
    "off": "not used (0)",
    "mixed": "depends on the state (±)",
    "unsure": "seeds disagree (?)",
    "distrusted": "not followed (0)",
}


def render_page(collection: Collection, data: dict[str, Any], live: bool = False) -> str:
    """The whole page with the figures of `data`; `live` for the one that a server keeps fresh."""
    from plotly.offline import get_plotlyjs

    return _render(
        "page.html",
        collection,
        data,
        policy=page_policy(live),
        style=_trusted(_read("report.css")),
        script=_trusted(_read("report.js")),
        plotly=_trusted(get_plotlyjs()),
        live=live,
    )


@functools.cache
def page_policy(live: bool) -> str:
    """The page may run its own two scripts, and ask for nothing; a live one may ask where it came from."""
    from plotly.offline import get_plotlyjs

    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in (get_plotlyjs(), _read("report.js")))
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def render_content(collection: Collection, data: dict[str, Any]) -> str:
    """What of the page changes while runs go on."""
    return _render("content.html", collection, data)


def _render(template: str, collection: Collection, data: dict[str, Any], **more: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bipars.report", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        **_view(collection, data["damaged"]), data=embedded_json(data), **more
    )


def _read(name: str) -> str:
    return (files("bipars.report") / "page" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _trusted(text: str) -> Any:
    """Our own script or style, as it is; it must not end the element it stands in."""
    from markupsafe import Markup

    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return Markup(text)


def embedded_json(data: Any) -> Any:
    """JSON that cannot end its script element, whatever names it holds."""
    from markupsafe import Markup

    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _view(collection: Collection, damaged: Sequence[str]) -> dict[str, Any]:
    """What the template is given: words and numbers, no markup. `damaged`: snapshots that cannot be shown."""
    records = collection.records
    done = sum(r.status == "done" for r in records)
    panels = [_panel(panel) for panel in collection.panels]
    count = len({(r.run.path.parent) for r in records})
    return {
        "title": f"bipars: {collection.root.resolve().name}",
        "standing": f"{collection.root.resolve().name}: {done} of {len(records)} runs finished, "
        f"{count} combination{'s' if count != 1 else ''} of task, terms and method.",
        "notes": [{"text": line, "failed": line.startswith(("FAILED", "MISSING"))} for line in standing(collection)],
        "panels": panels,
        "compare": compare_command(collection.root),
        "ignored_below": IGNORED_BELOW,
        "ignored_share": f"{100 * IGNORED_SHARE:.0f}",
        "ignored_where_it_matters": IGNORED_WHERE_IT_MATTERS,
        "matters_share": f"{100 * MATTERS_SHARE:.0f}",
        "fewest_seeds": FEWEST_SEEDS,
        "same_within": f"{100 * SAME_WITHIN:.0f}",
        "paper": paper_beside(collection),
        "record": record(collection, damaged),
        "footer": "Every figure of this page is also a picture and a table in a folder beside it.",
    }


def _panel(panel: Panel) -> dict[str, Any]:
    found = verdicts(panel)
    return {
        "name": panel.name,
        "env": panel.env + panel.detail,
        "verdicts": [_verdict(v) for v in found if v.cell is found[0].cell],
        "others": [_verdict(v) for v in found if v.cell is not found[0].cell],
        "silent": None if found else no_verdict(panel),
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    w = v.weights
    return {
        "term": short_name(v.term),
        "word": v.word,
        "headline": v.headline,
        "method": v.cell.title,
        "sentences": v.sentences,
        "advice": v.advice,
        "missing": what_is_missing(v) if v.missing else "",
        "weight": f"{w.mean.value:+.2f} ({w.mean.low:+.2f} to {w.mean.high:+.2f})",
        "overview": [_split(f"{w.mean.value:+.2f} ({w.mean.low:+.2f} to {w.mean.high:+.2f})")]
        + [_split(row["short"]) for row in _rivals(v.returns)],
        "states": f"{w.p10:+.2f} to {w.p90:+.2f}",
        "direction": DIRECTIONS[w.use],
        "share": "not recorded" if w.share is None else f"{100 * w.share:.0f} %",
        "trust": ""
        if w.trust is None
        else f"{100 * w.trust[0]:.0f} % over training, {100 * w.trust[1]:.0f} % at the end",
        "rivals": _rivals(v.returns),
        "own": v.returns["learned"].text(),
        "probabilities": _probabilities(v),
        "notes": v.notes,
    }


def _split(figure: str) -> tuple[str, str]:
    """A figure, and its interval."""
    value, _, interval = figure.partition(" (")
    return value, interval.removesuffix(")")


def _rivals(returns: dict[str, Estimate]) -> list[dict[str, Any]]:
    """The three returns on one scale."""
    low, high = min(e.low for e in returns.values()), max(e.high for e in returns.values())
    digits = digits_for(*(x for e in returns.values() for x in (e.low, e.high)))
    scale = 96 / (high - low) if high > low else 0.0
    rows = []
    for name, title in NAMES.items():
        e = returns.get(name)
        plot = e and {k: round(2 + (getattr(e, k) - low) * scale, 1) for k in ("low", "value", "high")}
        text = f"{e.text(digits)}, {e.seeds} seed{'s' if e.seeds != 1 else ''}" if e else "no such run"
        rows.append(
            {"name": title, "text": text, "short": e.text(digits) if e else "-", "plot": plot, "own": name == "learned"}
        )
    return rows


def _probabilities(v: Verdict) -> str:
    """How often a seed of the one beats a seed of the other."""
    asked = {
        "plain": "with learned weights beats one without the term",
        "naive": "with learned weights beats one with the term as written",
        "written": "with the term as written beats one without it",
    }
    parts = [f"{words}: {_chance(v.comparisons[name])}" for name, words in asked.items() if name in v.comparisons]
    return f"Probability that an agent {'; '.join(parts)}." if parts else ""


def _chance(c: Comparison) -> str:
    if c.low == c.high == 0.5:
        return "equal in every seed"
    return f"{100 * c.probability:.0f} % ({100 * c.low:.0f} to {100 * c.high:.0f} %)"
