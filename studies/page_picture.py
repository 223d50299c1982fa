"""The page of the committed run of `quick`, and a picture of its first screen for the README.

    python -m studies.page_picture

Needs Chromium. Writes docs/images/quick.html and docs/images/quick-page.png.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from benchbench.documents.run import report_document
from benchbench.exporters.page import html_page
from benchbench.store.runs import read_run

ROOT = Path(__file__).parent.parent
RUN = ROOT / "results/reference/2026-11-28-cpu-quick"
PAGE = ROOT / "docs/images/quick.html"
PICTURE = ROOT / "docs/images/quick-page.png"
WINDOW = "1280,1240"  # pixels: the answers, and who is fastest


def page() -> bytes:
    """The page as `accelbench report RUN -o quick.html` writes it on a machine without ceilings."""
    (content,) = html_page(report_document(read_run(RUN))).values()
    return content


def main() -> int:
    """Returns 1 without a browser."""
    PAGE.write_bytes(page())
    chromium = shutil.which("chromium")
    if not chromium:
        print("no chromium here: only the page was written", file=sys.stderr)
        return 1
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WINDOW}"]
    subprocess.run(
        [chromium, *options, f"--screenshot={PICTURE}", PAGE.as_uri()], check=True, capture_output=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
