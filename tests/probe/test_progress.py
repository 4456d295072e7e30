import io

from rich.console import Console

from bipars.runs.progress import describe, make_bar


def test_a_bar_shows_names_in_brackets_as_they_are():
    row = {"evaluation_return": -0.5, "evaluation_length": 120.0, "weight/harmful": -2.0, "weight/[red]": 0.5}
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    bar = make_bar(console)
    bar.add_task("runs/[bold]", total=10, now=describe(row))
    console.print(bar.get_renderable())
    text = console.file.getvalue()
    assert "runs/[bold]" in text
    assert "return -0.50  steps 120  z[harmful] -2.00  z[[red]] +0.50" in text
