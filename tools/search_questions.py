"""Asks the site's search users' questions; fails if another page is first.

    search_questions.py build/site

The search is the site's own: its script runs here, as in a browser.
"""

import json
import sys
from pathlib import Path
from typing import Any

import quickjs

# Each question, and the page that answers it.
QUESTIONS = {
    "my job hangs": "guides/troubleshooting",
    "save only on rank 0": "guides/checkpoints",
    "scale the learning rate": "guides/learning-rate",
    "slurm 4 gpus per node": "guides/slurm",
    "loss nan fp16": "guides/mixed-precision",
    "pytorch": "guides/coming-from",
    "resume": "guides/checkpoints",
    "validation": "guides/evaluation",
    "profile": "guides/profiling",
    "pin cpu threads": "guides/learning-rate",
}
# A worker of a browser, as far as the script uses it.
BROWSER = """
var self = globalThis, console = {warn() {}}, answer, listener;
function addEventListener(kind, call) { listener = call }
function postMessage(message) { answer = message }
"""
SETUP, QUERY = 0, 2  # kinds of messages to the script


class Search:
    """The search of the site in the folder `site`."""

    def __init__(self, site: Path) -> None:
        self._context = quickjs.Context()
        self._context.eval(BROWSER)
        [script] = site.glob("assets/javascripts/workers/search.*.js")
        self._context.eval(script.read_text())
        index = json.loads((site / "search/search_index.json").read_text())
        self._send(SETUP, index | {"options": {"suggest": False}})

    def pages(self, question: str) -> list[str]:
        """The pages that the search finds, the best first."""
        found = self._send(QUERY, question)["data"]["items"]
        return [hits[0]["location"].split("#")[0] for hits in found]

    def _send(self, kind: int, data: Any) -> Any:
        message = json.dumps({"data": {"type": kind, "data": data}})
        self._context.eval(f"listener({message})")
        while self._context.execute_pending_job():
            pass
        return json.loads(self._context.eval("JSON.stringify(answer)"))


def main() -> None:
    search = Search(Path(sys.argv[1]))
    wrong = []
    for question, page in QUESTIONS.items():
        found = search.pages(question)
        if found[:1] != [f"{page}.html"]:
            wrong.append(f"{question!r}: {found[:3]}, and not {page} first")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
