"""The page in a real browser: it draws, asks for nothing, obeys its controls, and does not believe its names."""

import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from bipars.report.build import write_report
from bipars.report.heatmap import heat_map
from bipars.report.watch import make_server
from bipars.results.panels import collect
from bipars.runs.directory import find_runs
from bipars.runs.snapshots import load_snapshots
from bipars.settings.config import Config, WeightConfig
from fake_runs import ROUNDS, as_resolved, fake_cell, fake_snapshots

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt install chromium")

NASTY = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script><a href='http://example.com'>$x$</a>"
TITLES = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Two tasks: one whose names are an attack; one with continuous actions, normalised, its weights in their unit."""
    root = tmp_path_factory.mktemp("runs") / "<b>runs&"
    base = Config(env="cartpole", steps=ROUNDS * 20_000)
    form = replace(base, weights=WeightConfig(form="per-action", learning_rate=1e-3))
    fake_cell(root / "a" / "<i>mgl", "mgl", [0.0, -0.1, 0.0], weight=-2.0, terms=(NASTY, "=1+1"), config=form)
    fake_cell(root / "a" / "ns", "ns", [-1.0, -0.9, -1.0], weight=1.0, terms=(NASTY, "=1+1"))
    fake_cell(root / "a" / "ppo", "ppo", [-0.5, -0.4, -0.5], terms=())
    other = replace(base, env="<u>Own-v0", weights=WeightConfig(form="state-action", learning_rate=1e-3))
    fake_cell(root / "b" / "mgl", "mgl", [0.0, -0.1, 0.0], weight=2.0, config=other)
    for run in find_runs(root / "a" / "<i>mgl"):
        fake_snapshots(run, terms=2)
    for run in find_runs(root / "b"):
        fake_snapshots(run, form="state-action", normalise=True, unit=0.3, reach=3.0)
    return write_report(collect(root))


class Watched:
    """A page, and everything it did that it should not."""

    def __init__(self, browser, url, width=1440, scheme="light"):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(180_000)  # of a busy machine
        self.trouble = []
        self.page.on("console", lambda m: self.trouble.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda e: self.trouble.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.trouble.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.trouble.append(r.url) if r.url != url and r.url[:5] != "data:" else None)
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready]")

    def figure(self, name):
        return self.page.evaluate(f"JSON.stringify(document.getElementById('{name}').data)")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "light"), (390, "dark"), (768, "light"), (1090, "dark"), (1440, "light"), (1440, "dark")],
)
def test_it_draws_at_every_width_and_in_every_light(browser, page_file, width, scheme):
    watched = Watched(browser, page_file.as_uri(), width, scheme)
    page = watched.page
    for name in ("curves", "weights", "map", "ranking", "episode", "gradients"):
        box = page.locator(f"#{name} svg.main-svg").first.bounding_box()
        assert box["width"] > 200
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == TITLES[scheme]
    sizes = "[...document.querySelectorAll('p, td, dd')].map((e) => parseFloat(getComputedStyle(e).fontSize))"
    assert min(page.evaluate(sizes)) >= 12.5
    assert watched.trouble == []
    page.close()


def test_it_turns_dark_with_its_reader(browser, page_file):
    watched = Watched(browser, page_file.as_uri())
    before = watched.figure("curves")
    watched.page.emulate_media(color_scheme="dark")
    watched.page.wait_for_function(
        "(before) => JSON.stringify(document.getElementById('curves').data) != before", arg=before
    )
    assert watched.trouble == []
    watched.page.close()


CONTROLS = [
    ("measure", "evaluation_length", ["curves"]),
    ("term", "1", ["weights"]),
    ("method", "", ["weights"]),
    ("checkpoint", "4", ["map", "ranking", "episode"]),
    ("agent", "1", ["map", "ranking", "episode"]),
    ("map-term", "1", ["map", "ranking"]),
    ("x", "3", ["map"]),
    ("y", "2", ["map"]),
    ("action", "1", ["map"]),
    ("others", "median", ["map"]),
    ("gradient", "policy_gradient_norm", ["gradients"]),
    ("panel", "1", ["weights", "map", "ranking", "episode"]),
]


def test_every_control_changes_its_figures(browser, page_file):
    watched = Watched(browser, page_file.as_uri())
    for control, value, figures in CONTROLS:
        if control == "x":
            watched.page.select_option("#x", "0")
            watched.page.select_option("#y", "1")
        before = [watched.figure(figure) for figure in figures]
        watched.page.select_option(f"#{control}", value)
        after = [watched.figure(figure) for figure in figures]
        assert all(a != b for a, b in zip(before, after, strict=True)), (control, figures)
    assert watched.trouble == []
    watched.page.close()


def test_boxes_and_the_preset_of_the_papers_figure(browser, page_file):
    watched = Watched(browser, page_file.as_uri())
    for box, figure in (("seeds", "curves"), ("mask", "map")):
        before = watched.figure(figure)
        watched.page.click(f"#{box}")
        assert watched.figure(figure) != before
    watched.page.click("#preset")
    assert watched.page.locator("#others").input_value() == "paper"
    assert watched.page.evaluate("document.getElementById('map').layout.xaxis.title.text") == "cart position"
    assert watched.page.evaluate("document.getElementById('map').layout.yaxis.title.text") == "pole angle"
    assert watched.trouble == []
    watched.page.close()


def test_names_are_shown_as_they_are(browser, page_file):
    watched = Watched(browser, page_file.as_uri())
    assert watched.page.locator("#verdict").inner_text().count(NASTY) >= 2
    assert watched.page.locator("#content img, #content a[href^='http'], #content i, #content u").count() == 0
    watched.page.evaluate("document.getElementById('map-term').dispatchEvent(new Event('change'))")
    assert watched.page.locator("#episode a").count() == 0
    assert NASTY[:20] in watched.page.locator("#episode .legend").text_content()
    assert watched.trouble == []
    watched.page.close()


@pytest.fixture(scope="module")
def page_of_sum_one(tmp_path_factory):
    """Weights of two terms that sum to one."""
    root = tmp_path_factory.mktemp("simplex")
    weights = WeightConfig(form="per-action", learning_rate=1e-3, simplex=True)
    config = Config(env="cartpole", steps=ROUNDS * 20_000, weights=weights)
    fake_cell(root / "mgl", "mgl", [0.0, -0.1, 0.0], weight=0.5, terms=("push", "pull"), config=config)
    for run in find_runs(root):
        fake_snapshots(run, terms=2, simplex=True)
    return write_report(collect(root))


@pytest.fixture(scope="module")
def page_of_evidence(tmp_path_factory):
    """Weights that deviate from one number per term."""
    root = tmp_path_factory.mktemp("evidence")
    config = as_resolved(Config(env="cartpole", steps=ROUNDS * 20_000, method="mgl", terms=("push", "pull")))
    weights = replace(config.weights, form="per-action", by_evidence=True)
    config = replace(config, weights=weights)
    fake_cell(root / "mgl", "mgl", [0.0, -0.1, 0.0], weight=0.5, terms=("push", "pull"), config=config)
    for run in find_runs(root):
        fake_snapshots(run, terms=2, evidence=True)
    return write_report(collect(root))


@pytest.mark.parametrize(
    ("page", "panel"), [("page_file", 0), ("page_file", 1), ("page_of_sum_one", 0), ("page_of_evidence", 0)]
)
def test_the_browsers_map_is_the_weight_functions(browser, page, panel, request):
    """The page computes the weight function itself; Python's own is the measure."""
    page_file = request.getfixturevalue(page)
    watched = Watched(browser, page_file.as_uri())
    names = watched.page.evaluate("bipars.data().panels.map((p) => p.env)")
    if len(names) > 1:  # else there is nothing to choose
        watched.page.select_option("#panel", str(panel))
    watched.page.select_option("#x", "0")
    watched.page.select_option("#y", "2")
    drawn = watched.page.evaluate("bipars.heatMap()")
    agent = watched.page.evaluate("bipars.data().panels[bipars.state.panel].inside[bipars.state.agent]")
    collection = collect(page_file.parent)
    shown = next(p for p in collection.panels if p.env == names[panel])
    cell = next(c for c in shown.cells if c.label == agent["cell"])
    record = next(r for r in cell.records if r.config.seed == agent["seed"])
    own = heat_map(record.config.weights, load_snapshots(record.run), 0, 0, 2)
    np.testing.assert_allclose(drawn["xs"], own.x, rtol=1e-5)
    np.testing.assert_allclose(np.array(drawn["z"], float), own.z, atol=1e-4)
    assert np.isfinite(own.z).any()
    assert np.isnan(own.z).any()
    watched.page.close()


def test_a_map_ends_where_the_action_space_does(browser, page_file):
    watched = Watched(browser, page_file.as_uri())
    watched.page.select_option("#panel", "1")
    watched.page.select_option("#y", "4")
    drawn = np.array(watched.page.evaluate("bipars.heatMap().ys"))
    (record, *_) = next(p for p in collect(page_file.parent).panels if p.env == "<u>Own-v0").cells[-1].records
    own = heat_map(record.config.weights, load_snapshots(record.run), 0, 0, 4).y
    for ticks in (drawn, own):  # the middles of 28 cells
        assert np.abs(ticks).max() == pytest.approx(27 / 28, rel=1e-3)
    watched.page.close()


MANY = [f"a_reward_term_with_quite_a_long_name_{i}" for i in range(16)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("terms", [5, 16])
def test_on_a_phone_no_table_is_cut_or_scrolls(browser, tmp_path, terms, scheme):
    fake_cell(tmp_path / "mgl", "mgl", [0.0, -0.1, 0.0, 0.0], weight=-2.0, terms=tuple(MANY[:terms]))
    fake_cell(tmp_path / "ppo", "ppo", [-0.5, -0.4, -0.5, -0.4], terms=())
    for run in find_runs(tmp_path / "mgl"):
        fake_snapshots(run, terms=terms)
    watched = Watched(browser, write_report(collect(tmp_path)).as_uri(), 390, scheme)
    watched.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    cut = """[...document.querySelectorAll('table, table *, .wide')].filter((e) =>
        e.getBoundingClientRect().right > innerWidth || e.scrollWidth > e.clientWidth + 1 &&
        !e.closest('svg') && getComputedStyle(e).display != 'inline').map((e) => e.outerHTML.slice(0, 99))"""
    assert watched.page.evaluate(cut) == []
    assert watched.page.evaluate("document.getElementById('episode').data.length") == min(terms, 6) + 1
    assert watched.trouble == []
    watched.page.close()


def test_a_live_page_follows_its_runs(browser, tmp_path):
    """What the reader chose stays chosen, and nothing but the page itself is asked for."""
    fake_cell(tmp_path, "mgl", [0.0, -0.1, 0.0], weight=-2.0, finish=False)
    with make_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            watched = Watched(browser, url)
            watched.page.select_option("#measure", "evaluation_length")
            fake_cell(tmp_path, "mgl", [0.0, -0.1, 0.0], weight=-2.0)
            watched.page.wait_for_selector("text=3 of 3 runs finished")
            assert watched.page.locator("#measure").input_value() == "evaluation_length"
            assert watched.page.locator("#curves svg.main-svg").count() > 0
            assert set(watched.trouble) == {f"{url}content"}
            watched.page.close()
        finally:
            server.shutdown()
            thread.join()
