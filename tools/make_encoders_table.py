"""Write the table of published encoders in docs/encoders.md from the catalog that `bertkit encoders` lists."""

from __future__ import annotations

from pathlib import Path

from bertkit.storage.hub.encoders import as_table, list_encoders

PAGE = Path(__file__).parent.parent / "docs" / "encoders.md"
BEGIN, END = "<!-- encoders -->\n", "<!-- end of encoders -->\n"


def encoders_table() -> str:
    """Return the table in Markdown."""
    rows = as_table(list_encoders())
    head = "| encoder | parameters | tokens | languages | license | for |\n|---|---:|---:|---:|---|---|\n"
    return head + "".join(f"| `{row['encoder']}` | {' | '.join(list(row.values())[1:])} |\n" for row in rows)


def with_table(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{encoders_table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE}: written")
