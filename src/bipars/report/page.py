"""The page: one self-contained file from a template that escapes everything it is given."""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from bipars.report.pairs import pairs_below
from bipars.report.pairs_view import view as pairs_view
from bipars.report.paper import paper_beside
from bipars.report.record import record
from bipars.report.text import PARAGRAPHS, hints, no_verdict, panel_title, standing, strength
from bipars.results.comparison import FEWEST_SEEDS, SAME_WITHIN, Comparison, Estimate, digits_for
from bipars.results.direction import KNOWN, NOTHING, SHORT
from bipars.results.panels import Collection, Panel
from bipars.results.summary import short_name
from bipars.results.verdict import Judgement, judgements
from bipars.results.wording import Verdict

NAMES = {
    "learned": "learned weights",
    "frozen": "fresh agent, weights frozen",
    "scalars": "fresh agent, one number per term",
    "naive": "terms as written",
    "plain": "without terms",
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
    panels = [_panel(panel, collection.root) for panel in collection.panels]
    count = len({(r.run.path.parent) for r in records})
    return {
        "title": f"bipars: {collection.root.resolve().name}",
        "standing": f"{collection.root.resolve().name}: {done} of {len(records)} runs finished, "
        f"{count} combination{'s' if count != 1 else ''} of task, terms and method.",
        "notes": [
            {"text": line, "failed": line.startswith(("FAILED", "MISSING"))}
            for line in dict.fromkeys([*standing(collection), *damaged])
        ],
        "panels": panels,
        "pairs": pairs_view(pairs_below(collection)),
        "known": f"{KNOWN:g}",
        "nothing": f"{NOTHING:g}",
        "short": f"{SHORT:g}",
        "fewest_seeds": FEWEST_SEEDS,
        "same_within": f"{100 * SAME_WITHIN:.0f}",
        "paper": paper_beside(collection),
        "record": record(collection),
        "footer": "Every figure of this page is also a picture and a table in a folder beside it.",
    }


def _panel(panel: Panel, root: Path) -> dict[str, Any]:
    found = judgements(panel)
    main = found[0] if found else None
    return {
        "name": panel.name,
        "title": panel_title(panel),
        "env": panel.env + panel.detail,
        "main": None if main is None else _judgement(panel, main, root),
        "others": [_judgement(panel, other, root) for other in found[1:]],
        "silent": None if found else no_verdict(panel),
    }


def _judgement(panel: Panel, judgement: Judgement, root: Path) -> dict[str, Any]:
    together = judgement.together
    return {
        "method": judgement.cell.title,
        "sentences": together.sentences,
        "nothing": together.silence is not None,
        "rivals": _rivals(together.returns),
        "notes": together.notes,
        "hints": hints(panel, judgement, root),
        "tested": any(v.gain is not None for v in judgement.verdicts),
        "open": len(judgement.verdicts) <= PARAGRAPHS,
        "verdicts": [_verdict(v) for v in judgement.verdicts],
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    w = v.weights
    return {
        "term": short_name(v.term),
        "advice": v.advice,
        "strength": strength(v),
        "headline": v.headline,
        "evidence": v.evidence,
        "t": "not recorded" if v.direction is None else f"{v.direction.t:+.1f}",
        "gain": _gain(v.gain),
        "weight": f"{w.mean.value:+.2g}",
        "share": "not recorded" if w.share is None else f"{100 * w.share:.0f} %",
    }


def _gain(gain: Comparison | None) -> str:
    if gain is None:
        return "not tested"
    return "shown" if gain.gain else {"worse": "a loss", "unclear": "too few seeds"}.get(gain.outcome, "none")


def _rivals(returns: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """The returns on one scale."""
    low, high = min(e.low for e in returns.values()), max(e.high for e in returns.values())
    digits = digits_for(*(x for e in returns.values() for x in (e.low, e.high)))
    scale = 96 / (high - low) if high > low else 0.0
    rows = []
    for name, title in NAMES.items():
        e = returns.get(name)
        if e is None and name in ("frozen", "scalars"):
            continue
        plot = e and {k: round(2 + (getattr(e, k) - low) * scale, 1) for k in ("low", "value", "high")}
        text = f"{e.text(digits)}, {e.seeds} seed{'s' if e.seeds != 1 else ''}" if e else "not trained"
        rows.append({"name": title, "text": text, "plot": plot, "own": name == "learned"})
    return rows
