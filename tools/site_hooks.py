"""Hooks of mkdocs: each page's source is in the site, and ranges stay whole.

"View source" of a page shows its text, which lies beside it, as
`install.md.txt`: browsers show plain text, but some of them save Markdown.
"""

import re
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"\([\d.]+ - (<strong>)?[\d.]+(</strong>)?\)")


def on_page_content(html: str, **_: Any) -> str:
    """Leaves the functions' source, which is folded, out of the search.

    And keeps a range such as (29 - 130) on one line, in tables above all.
    """
    fold = '<details class="mkdocstrings-source"'
    html = html.replace(fold, f"{fold} data-search-exclude")
    return _RANGE.sub(r'<span class="range">\g<0></span>', html)


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Writes a page's text beside it, and gives its address to the theme."""
    source = Path(page.file.abs_src_path)
    target = Path(page.file.abs_dest_path).with_name(f"{source.name}.txt")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.read_text())
    page.edit_url = target.name
    return context
