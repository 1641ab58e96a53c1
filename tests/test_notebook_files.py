"""What the committed notebooks hold; the suite runs them with nbval."""

import json
from pathlib import Path

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def pages(path):
    """Return the HTML of a notebook's outputs."""
    return [
        "".join(output["data"]["text/html"])
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]


def test_pictures_are_images_which_a_notebook_shows_before_it_is_trusted():
    """JupyterLab takes inline drawings and scripts out of what it does not trust."""
    found = [(path.stem, page) for path in NOTEBOOKS for page in pages(path)]

    assert sum("<img" in page for _, page in found) > 10
    assert [name for name, page in found if "<svg" in page or "<script" in page] == []
