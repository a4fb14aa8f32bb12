"""`bertkit push`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import argument, flag
from bertkit.cli.output import print_line, print_next, print_notes, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.push import PushResult

ORDER = 57
EXAMPLE = "bertkit push runs/cola YOUR_NAME/cola --dry-run"


def command(
    run: Annotated[str, argument("Run folder.", "RUN")],
    name: Annotated[str, argument("Name of the model on the Hub.", "ORG/NAME")],
    private: Annotated[bool, flag("--private", "Create a private repository.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Check the run and list its files, but send nothing.")] = False,
) -> None:
    """Push the model of a run to the Hugging Face Hub.

    Sends weights, tokenizer, card, recipe, scores, calibration and exported graphs, but no rows, row digests,
    predictions or checkpoints. Afterwards, transformers, `predict`, `eval` and `bertkit.load` load the model by name.
    """
    from bertkit.workflows.push import push

    print_result(push(run, name, private=private, dry_run=dry_run), print_push)


def print_push(result: PushResult) -> None:
    """Print the files and the commit of a push, and the next command."""
    print_table(result.name, [{"file": path, "bytes": f"{size:,}"} for path, size in result.files.items()], 100)
    print_text(f"  {len(result.files)} files, {sum(result.files.values()) / 1e6:,.1f} MB")
    print_notes(result.notes)
    if result.commit is None:
        print_line("Nothing was sent.")
        return
    if result.deleted:
        print_text(f"  deleted from the repository: {', '.join(result.deleted)}")
    # A push of the same files makes no commit on the Hub.
    is_new = result.commit != result.before
    print_text(f"  {'commit' if is_new else 'nothing changed since commit'} {result.commit}")
    name = quote(result.name)
    print_next(f"bertkit finetune RECIPE --model {name}" if result.is_pretrained else f"bertkit predict {name} FILE")
