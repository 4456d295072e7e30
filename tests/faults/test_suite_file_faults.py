"""Mistakes in the files of suites."""

import pytest

from bipars.errors import UsageError
from bipars.suite.plan import load_suite
from suites import SMALL, write


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"mgl"]', '"mlg"]', "Did you mean 'mgl'"),
        ("steps = 4000", "step = 4000", "my.toml: unknown key 'step'. Did you mean 'steps'"),
        ('label = "again"', 'labels = "again"', "Did you mean 'label'"),
        ('label = "again"\n', "", "'cartpole/harmful/mgl' stands there twice"),
        ("{env}/harmful/mgl", "{env}/harmful/mg", "Did you mean 'cartpole/harmful/mgl'"),
        ("gradient_steps", "gradient_step", "Did you mean 'gradient_steps'"),
        ("[[grid]]", "[[grid]", "my.toml"),
    ],
)
def test_a_mistake_in_a_suite_file_is_one_message(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        load_suite(write(tmp_path, SMALL.replace(old, new)))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('[[panel]]\nname = "a"\ntitle = "t"\ncells = ["cartpole/harmful/mlg"]', "Did you mean 'cartpole/harmful/mgl'"),
        ('[[panel]]\nname = "a"\ntitel = "t"', "panel 1: unknown key 'titel'. Did you mean 'title'"),
        ('[[panel]]\nname = "a"\ntitle = "t"\n[[panel.paper]]\nsays = "s"\nof = "*"', "exactly one of above, below"),
        ('[[grid]]\nenv = "cartpole"\nmethod = 3', "grid 3: method is 3; expected a name or a list"),
        ('[[grid]]\nmethod = "ppo"', "grid 3: env is missing"),
        (
            '[[grid]]\nenv = "cartpole"\nmethod = "ppo"\nsteps = "many"',
            "steps is 'many'; expected a whole number",
        ),
        ('[[grid]]\nenv = "cartpole"\nmethod = "ppo"\nseeds = "x"', "grid 3: seeds are 'x'"),
        (
            '[[grid]]\nenv = "cartpole"\nterm = "harmful"\nmethod = "em"\nlabel = "l"\nweights_from = "{envs}/x"',
            "braces",
        ),
    ],
)
def test_a_mistake_in_a_panel_or_grid_is_one_message(tmp_path, extra, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_suite(write(tmp_path, SMALL + extra))
    assert "my.toml" in str(caught.value)
