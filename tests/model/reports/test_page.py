"""Tables as Markdown."""

from rich.table import Table

from model.reports.page import markdown, page


def table():
    layers = Table(title="Layers")
    layers.add_column("kind")
    layers.add_column("count", justify="right")
    layers.add_row("a|b", "1,000")
    layers.add_row("c", "")
    return layers


def test_rows_alignment_and_bars_inside_cells():
    assert markdown(table()) == "| kind | count |\n|---|---:|\n| a\\|b | 1,000 |\n| c |  |\n"


def test_the_page_names_its_command_and_each_table():
    text = page("python -m model.describe x --markdown", [table(), table()])
    assert "`python -m model.describe x --markdown`" in text and text.count("\n## Layers\n| kind |") == 2
