"""`bertkit pretrain sizes`."""

from __future__ import annotations

from bertkit.cli.output import print_result, print_table

ORDER = 2
EXAMPLE = "bertkit pretrain sizes"


def command() -> None:
    """List the named sizes of new models."""
    from bertkit.modeling.sizes import find_size, size_names

    sizes = {name: find_size(name) for name in size_names()}
    rows = [
        {"size": name, "layers": size.layers, "hidden": size.hidden, "heads": size.heads, "model": size.model_type}
        | {"vocabulary": size.vocabulary, "parameters": size.parameters}
        for name, size in sizes.items()
    ]
    shown = [row | {"parameters": f"{sizes[str(row['size'])].parameters / 1e6:,.1f}M"} for row in rows]
    title = "encoders with the vocabulary that they were published with"
    print_result({"sizes": rows}, lambda _: print_table(title, shown, max_rows=len(rows)))
