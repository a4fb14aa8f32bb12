"""`bertkit predict`."""

from __future__ import annotations

import csv
from typing import Annotated, Any

from bertkit.cli.options import (
    CheckpointOption,
    OptionalRowsFileArgument,
    PredictionSetOption,
    RecordsOption,
    RowOption,
    RunArgument,
    ShardOption,
    TextOption,
    ZeroShotOption,
    check_unused_options,
    find_checkpoint,
    flag,
    get_zero_shot_task,
    merge_changes,
    option,
    parse_row,
    recipe_options,
)
from bertkit.cli.output import print_file, print_records
from bertkit.errors import UsageError

ORDER = 20
EXAMPLE = 'bertkit predict runs/cola --text "The dog chased old the bird."'

EscapeOption = Annotated[
    bool,
    flag("--escape-formulas", "Put ' before texts that a spreadsheet would interpret as formulas (.csv and .tsv)."),
]
CoverageOption = Annotated[
    float | None,
    option("Probability that an added label set has the right label (requires `bertkit calibrate`).", "P"),
]


@recipe_options("max_length", set_option=PredictionSetOption)
def command(
    run: RunArgument,
    changes: dict[str, Any],
    file: OptionalRowsFileArgument = None,
    model: CheckpointOption = None,
    text: TextOption = None,
    row: RowOption = None,
    min_precision: Annotated[
        float | None,
        option("Minimum precision; less certain rows have no prediction (requires `bertkit calibrate`).", "P"),
    ] = None,
    coverage: CoverageOption = None,
    abstain_below: Annotated[
        float | None, option("Minimum probability of a predicted label; other rows have no prediction.", "P")
    ] = None,
    output: RecordsOption = None,
    shard: ShardOption = None,
    columns: Annotated[
        str | None,
        option("Columns to write, in this order, e.g. id,prediction,confidence.", "LIST", "all"),
    ] = None,
    delimiter: Annotated[str | None, option("Delimiter of a .csv or .tsv file.", "CHAR", "as in FILE")] = None,
    encoding: Annotated[
        str | None,
        option("Encoding of a .csv or .tsv file; Excel recognizes UTF-8 only as utf-8-sig.", "NAME", "as in FILE"),
    ] = None,
    digits: Annotated[
        int | None, option("Decimals of predicted numbers in a .csv or .tsv file.", "N", "4", min=0, max=17)
    ] = None,
    escape_formulas: EscapeOption = False,
    zero_shot: ZeroShotOption = False,
) -> None:
    """Predict rows with a fine-tuned checkpoint.

    The output is one record per row, in the order of the rows, with the probability of each label.
    """
    from bertkit.data.output import FileLayout

    # 1. Reject options that contradict each other, before anything is loaded.
    single_row = parse_row(text, row)
    if single_row is not None and file is not None:
        raise UsageError("FILE and --text or --row are both given", "leave one of them out")
    layout = FileLayout(split_names(columns), delimiter, encoding, digits, escape_formulas)
    if output is None:  # Records are printed as JSON lines, so options for files would have no effect.
        options = {"--columns": columns, "--delimiter": delimiter, "--encoding": encoding, "--digits": digits}
        options["--escape-formulas"] = escape_formulas
        check_unused_options(options, "without --output", "name a file with --output")
    if min_precision is not None and abstain_below is not None:
        raise UsageError("--min-precision and --abstain-below are both given", "leave one of them out")
    # 2. Find the checkpoint, and the thresholds of its calibration.
    recipe, checkpoint = find_checkpoint(run, model)
    task = get_zero_shot_task(recipe) if zero_shot else None
    settings = {"model": checkpoint, "options.abstain_below": abstain_below, "task": task}
    from bertkit.recipe.load import load_recipe

    loaded_recipe = load_recipe(recipe, merge_changes(settings, changes))
    if min_precision is not None or coverage is not None:
        from bertkit.workflows.calibrate import with_thresholds

        loaded_recipe = with_thresholds(loaded_recipe, precision=min_precision, coverage=coverage)
    from bertkit.workflows.predict import predict, predict_to_file

    if output is None:
        # 3. Predict. Records are printed as they are computed; a file is written atomically.
        print_records("predictions", predict(loaded_recipe, source=file, row=single_row))
        return
    rows = predict_to_file(loaded_recipe, output, source=file, row=single_row, layout=layout)
    if rows is not None:
        print_file(output, rows)


def split_names(text: str | None) -> tuple[str, ...]:
    """Return the names of a list with commas; a name with a comma is in double quotes.

    >>> split_names('id, "a, b"')
    ('id', 'a, b')
    """
    return () if text is None else tuple(next(csv.reader([text], skipinitialspace=True), ()))
