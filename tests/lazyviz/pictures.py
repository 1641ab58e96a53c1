"""Make the README's pictures from real cells in JupyterLab: `python -m tests.lazyviz.pictures`.

Each is written in the light and in the dark theme, under `docs/`. Look at them before a commit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.conftest import find_browser
from tests.lazyviz.labs import (
    ROOT,
    browsing,
    open_notebook,
    run_cell,
    serving,
    set_theme,
    write_notebook,
)

CELLS = [
    (
        "%load_ext lazyviz\n"
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
        "import lazyrt\n"
        "lazyrt.config.cache_dir = None"
    ),
    (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.hidden = nn.Linear(16, 32)\n"
        "        self.head = nn.Linear(32, 4)\n"
        "    def forward(self, x):\n"
        "        return self.head(torch.tanh(self.hidden(x)))\n"
        "torch.manual_seed(0)\n"
        "model = Net().to('lazyrt')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "x = torch.randn(64, 16).to('lazyrt')\n"
        "labels = torch.randint(0, 4, (64,)).to('lazyrt')\n"
        "lazyrt.mark_step()"
    ),
    "loss = F.cross_entropy(model(x), labels)\nprint(loss)",
    "%lazy explore",
    (
        "losses = []\n"
        "for step in range(6):\n"
        "    with lazyrt.step('train'):\n"
        "        optimizer.zero_grad()\n"
        "        loss = F.cross_entropy(model(x), labels)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        losses.append(loss)"
    ),
    "%lazy live",
    "%lazy timeline 2",
]
PICTURES = {"cell": 2, "explore": 3, "live": 5, "timeline": 6}
_THEMES = {"Light": "", "Dark": "-dark"}
_SIZE = {"width": 1100, "height": 1400}


def main() -> None:
    """Write the pictures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, default=ROOT / "docs")
    folder = options.parse_args().folder
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        write_notebook(work / "pictures.ipynb", CELLS)
        with (
            serving(work) as address,
            browsing(find_browser(), work) as (tab, _),
        ):
            tab.set_viewport_size(_SIZE)
            take(tab, address, folder)


def take(tab, address, folder):
    """Run the cells and take each picture in both themes."""
    open_notebook(tab, address, "pictures.ipynb")
    tab.evaluate(
        "() => window.jupyterapp.commands.execute('application:toggle-left-area')"
    )
    cells = [run_cell(tab, index) for index in range(4)]
    cells[2].locator(".lazyviz-strip summary").first.click()
    # The whole drawing, which scrolls otherwise.
    cells[2].locator(".lazyviz-strip div:has(> img)").last.evaluate(
        "box => { box.style.maxHeight = 'none'; }"
    )
    # While the step is pending; afterwards this value is gone.
    tab.locator(".lzg-host g[aria-label*='aten.tanh']").first.click()
    tab.locator(".lzg-panel [data-value]").first.wait_for(timeout=60_000)
    cells += [run_cell(tab, index) for index in range(4, len(CELLS))]
    # The live views, which take the place of the static ones.
    for live in (".lzl-table tbody tr", ".lzt-view svg"):
        tab.locator(live).first.wait_for(timeout=60_000)
    show_a_span(tab)
    for theme, suffix in _THEMES.items():
        set_theme(tab, theme)
        # Pictures within an output follow the system's theme.
        tab.emulate_media(color_scheme=theme.lower())
        for name, number in PICTURES.items():
            cells[number].scroll_into_view_if_needed()
            tab.mouse.move(5, 5)
            tab.wait_for_timeout(300)
            cells[number].screenshot(path=folder / f"{name}{suffix}.png")


def show_a_span(tab):
    """Zoom the timeline to a compile, whose details stand below then."""
    tab.locator(".lzt-view svg").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter", "-", "-"):
        tab.keyboard.press(key)


if __name__ == "__main__":
    main()
