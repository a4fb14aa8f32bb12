"""Arguments and options that several commands share, and the recipe keys that options override."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertkit.cli.completion import complete_recipe, complete_run, complete_split
from bertkit.errors import RecipeError, UsageError, similar_path
from bertkit.hardware.launch import use_shard

if TYPE_CHECKING:
    from bertkit.recipe.records import DataConfig


def parse_number(text: str) -> float | str:
    """Return a number, or `auto`.

    Raises:
        typer.BadParameter: If the text is something else.
    """
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor auto") from None


_EXAMPLES = {"predict": "RUN", "eval": "RUN", "calibrate": "RUN", "recipe": "mlm", "ablate": "mlm"}
"""Command -> example of its first argument; other commands get a recipe that fits the file."""


def check_recipe_name(context: typer.Context, recipe: str | None) -> str | None:
    """Return the name of a recipe; if it is a file with rows instead, the error shows the command for that file.

    Raises:
        UsageError: If it is a file with rows.
    """
    from bertkit.recipe.load import is_other_file

    if recipe is None or not is_other_file(recipe):
        return recipe
    # `bertkit finetune reviews.csv` suggests `bertkit finetune classify --data reviews.csv`. The suggested line must
    # work, so it puts the file where the command takes rows, and nowhere if it takes none.
    parameters = {parameter.name for parameter in context.command.params}
    rows_option = " " if "file" in parameters else " --data " if "data" in parameters else ""
    default_recipe = "tag" if recipe.endswith((".conll", ".conllu")) else "classify"
    example = _EXAMPLES.get(str(context.info_name), default_recipe)
    line = f"{context.command_path} {example}" + (rows_option and rows_option + shlex.quote(recipe))
    expected, listing = ("run or a recipe", "runs") if example == "RUN" else ("recipe", "recipes")
    message = f"{recipe} is a file, and a {expected} is expected"
    raise UsageError(message, f"write e.g. `{line}`; see `bertkit {listing} list`")


def option(
    help: str, metavar: str | None = None, default: str | bool = True, *, names: Sequence[str] = (), **settings: Any
) -> Any:
    """Declare an option of a command.

    Args:
        help: Help text.
        metavar: Name of the value in the help.
        default: Default that the help shows instead of the default of the parameter; False shows none.
        names: Names on the command line, if they differ from the name of the parameter.
        settings: Further settings of typer, such as `min`.
    """
    return typer.Option(*names, help=help, metavar=metavar, show_default=default, **settings)


def flag(name: str, help: str) -> Any:
    """Declare an option that takes no value and has no `--no-` form."""
    return typer.Option(name, help=help)


def argument(help: str, metavar: str, **settings: Any) -> Any:
    """Declare an argument of a command; see `option`."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def output_option(help: str, metavar: str, default: str | bool = True, **settings: Any) -> Any:
    """Declare the option `--output`; `default` describes where results go without it."""
    return option(help, metavar, default, names=("--output", "-o"), **settings)


FROM_RECIPE = "from the recipe"
"""Default of an option that overrides a key of the recipe."""

# Commands share these annotations, so that an option has the same name, help and default everywhere.
RECIPE_NAME: dict[str, Any] = {"autocompletion": complete_recipe, "callback": check_recipe_name}
"""Settings of an argument that names a recipe."""

RecipeArgument = Annotated[
    str, argument("A shipped recipe (see `bertkit recipes list`) or a YAML file.", "RECIPE", **RECIPE_NAME)
]
_RUN = argument(
    "Run folder; with --model, a shipped recipe (see `bertkit recipes list`) or a YAML file.",
    "RUN",
    **{**RECIPE_NAME, "autocompletion": complete_run},
)
RunArgument = Annotated[str, _RUN]
OptionalRunArgument = Annotated[str | None, _RUN]
_ROWS_FILE = argument("Rows: csv, tsv, jsonl, json, parquet, txt (one text per line), ...; `-` for stdin.", "FILE")
RowsFileArgument = Annotated[str, _ROWS_FILE]
OptionalRowsFileArgument = Annotated[str | None, _ROWS_FILE]
TrainedArgument = Annotated[
    str, argument("Run folder; with --recipe, any fine-tuned checkpoint.", "RUN", autocompletion=complete_run)
]
CheckpointRecipeOption = Annotated[
    str | None,
    option("Recipe of a checkpoint that is not a run.", "RECIPE", "from the run", autocompletion=complete_recipe),
]
PredictionsSplitOption = Annotated[
    str | None,
    option("Split whose predictions to read.", "SPLIT", "the first validation split", autocompletion=complete_split),
]
PredictionsRecipeOption = Annotated[
    str | None,
    option("Recipe of the task, for prediction files, which do not name it.", "RECIPE", "from the run"),
]
OnOverlapOption = Annotated[
    Literal["error", "drop", "mark"],
    option("Action on training rows of the checkpoint: error, drop, or mark (score and mark them).", "CHOICE"),
]
PretrainedOption = Annotated[str, option("Pretrained model: Hub name, directory or `demo`.", "MODEL")]
CheckpointOption = Annotated[
    str | None,
    option("Checkpoint, if RUN is a recipe: run folder, directory or Hub name.", "CKPT", "the run"),
]
LimitOption = Annotated[int | None, option("Use only the first N rows of each split.", "N", "all")]


def set_option(*read: str, help: str = "Set a key of the recipe, e.g. training.max_length=64; repeatable.") -> Any:
    """Declare the option that sets keys of a recipe; keys that match none of the patterns in `read` are errors."""

    # A key without effect is an error, because a user who sets it expects an effect.
    def check(changes: list[str] | None) -> list[str] | None:
        from bertkit.recipe.load import parse_changes

        for key in parse_changes(changes or []) if read else ():
            if not any(fnmatch(key, pattern) for pattern in read):
                # List keys of the same section; the complete list can be as long as a page.
                section = key.partition(".")[0]
                nearby = [pattern for pattern in read if pattern.strip("*").partition(".")[0] == section]
                raise RecipeError(f"--set {key}: not read by this command", f"it reads {', '.join(nearby or read)}")
        return changes

    return option(help, "KEY=VALUE", names=("--set",), callback=check)


SetOption = Annotated[list[str] | None, set_option()]
_FORMAT_KEYS = [f"data.{key}" for key in ("format", "header", "delimiter", "quoting", "encoding")]
# Keys that can change the prediction for a row, for `predict` and `explain`.
_PREDICTION_KEYS = ["task", "labels", "model_labels", "*options.*", "data.columns*", "data.ignore_columns"]
_PREDICTION_KEYS += [*_FORMAT_KEYS, "training.max_length", "training.precision", "training.cls_only_last_layer"]
# Keys that can change a score, for `eval`, `check` and other commands that read gold labels.
_SCORING_KEYS = [*_PREDICTION_KEYS, "metrics", "best_metric", "gates.*", "training.seed", "training.class_weights"]
# All keys of `data` can change a score, except those that sample training rows.
_SCORING_KEYS += [f"data.{key}" for key in ("source", "config", "language", "revision", "files*", "splits*", "limit")]
_SCORING_KEYS += [f"data.{key}" for key in ("empty_text", "empty_label", "label_range", "split_column", "cache")]
_SCORING_KEYS += ["data.validation_fraction", "data.hold_out"]
PredictionSetOption = Annotated[list[str] | None, set_option(*_PREDICTION_KEYS)]
ScoringSetOption = Annotated[list[str] | None, set_option(*_SCORING_KEYS)]
_AUTO: dict[str, Any] = {"parser": parse_number, "metavar": "NUMBER|auto", "default": FROM_RECIPE}
SeedsOption = Annotated[
    str | None, option("Seeds to train with, one run per seed: their number (5) or a list (1,2,7).", "N|LIST")
]
SeedOption = Annotated[int, option("Random seed.", "N", min=0, max=2**32 - 1)]
JobsOption = Annotated[
    int, option("Number of seeds or trials to train at the same time, each in its own process.", "N")
]
WorkerOption = Annotated[
    bool, flag("--worker", "Help another process to train the seeds or trials of the same folder.")
]
DryRunOption = Annotated[bool, flag("--dry-run", "Check everything and print the plan, but keep nothing.")]
RestartOption = Annotated[bool, flag("--restart", "Start over; an earlier run in the folder is moved aside.")]
ZeroShotOption = Annotated[
    bool,
    flag("--zero-shot", "Use label names as descriptions, with a model for sentence vectors or language inference."),
]


def check_page_path(page: Path | None) -> Path | None:
    """Check the path of a page before any work, and return it; see `bertkit.storage.outputs.check_page`."""
    from bertkit.storage.outputs import check_page

    return None if page is None else check_page(page)


PageOption = Annotated[Path | None, output_option("Page to write (.html).", "FILE", callback=check_page_path)]


def check_report_path(report: Path | None) -> Path | None:
    """Check the path of a report before any work, and return it; see `bertkit.reports.cases.check_report`."""
    from bertkit.reports.cases import check_report

    return check_report(report)


_REPORT_HELP = "Report to write: JUnit for CI (.xml) or a summary for a pull request (.md)."
ReportOption = Annotated[Path | None, option(_REPORT_HELP, "FILE", callback=check_report_path)]
PairOption = Annotated[str | None, option("Second text of a pair.", "TEXT")]
FirstRowsOption = Annotated[int | None, option("Use only the first N rows.", "N", "all", min=1)]
TextOption = Annotated[str | None, option("One text; short for --row text=TEXT.", "TEXT")]
RowOption = Annotated[
    list[str] | None,
    option("Value of a column, for one row; repeat it for other columns, or for a list.", "COLUMN=VALUE"),
]
RecordsOption = Annotated[
    Path | None, output_option("File to write: .jsonl, .csv, .tsv or .parquet.", "FILE", "JSON lines on stdout")
]
ShardOption = Annotated[
    str | None,
    option(
        "Process shard I of N, e.g. 1/4; the last shard to finish writes the complete output.",
        "I/N",
        callback=use_shard,
    ),
]
OutputOption = Annotated[Path | None, output_option("Run folder.", "DIR", "runs/RECIPE")]


# No option has a default here, because a default would override every recipe.
RECIPE_OPTIONS: dict[str, Any] = {
    "model": Annotated[str | None, option("Pretrained model: Hub name, directory or `demo`.", "MODEL", FROM_RECIPE)],
    "data": Annotated[str | None, option("Dataset: Hub name, directory, file or `demo`.", "DATA", FROM_RECIPE)],
    "epochs": Annotated[Any, option("Passes over the training data.", **_AUTO)],
    "learning_rate": Annotated[Any, option("Peak learning rate.", **_AUTO)],
    "batch_size": Annotated[int | None, option("Rows per optimizer step.", "N", FROM_RECIPE)],
    "max_length": Annotated[int | None, option("Maximum tokens per text or text pair.", "N", FROM_RECIPE)],
    "seed": Annotated[int | None, option("Random seed.", "N", FROM_RECIPE)],
    "limit": LimitOption,
    "report_to": Annotated[
        list[str] | None,
        option("Report losses and scores to a tracker, e.g. tensorboard or wandb; repeatable.", "TRACKER", FROM_RECIPE),
    ],
}
ROW_OPTIONS = ("data", "max_length", "limit")
TRAINING_OPTIONS = ("data", "epochs", "learning_rate", "batch_size", "max_length", "seed", "limit")
_KEYS = {"data": "data.source", "limit": "data.limit", "model": "model", "size": "size", "tokenizer": "tokenizer"}
"""Option -> recipe key; other options are keys of `training`."""
_Command = Callable[..., None]


def recipe_options(*names: str, set_option: Any = SetOption, **custom: Any) -> Callable[[_Command], _Command]:
    """Replace the parameter `changes` of a command by options that override keys of its recipe, and `--set`.

    The command gets their values as `changes`, key -> value. A key in `--set` wins over the option for the same key.

    Args:
        names: Names in `RECIPE_OPTIONS`; many commands take `ROW_OPTIONS` or `TRAINING_OPTIONS`.
        set_option: Annotation of `--set`, which can reject keys.
        custom: Name -> annotation, for options that only this command has or that need another help text.
    """
    # A custom annotation replaces the shared one of the same name, at the same position in the help.
    available = RECIPE_OPTIONS | custom
    options = {name: available[name] for name in available if name in (*names, *custom)}

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def run(changes: list[str] | None = None, **values: Any) -> None:
            from bertkit.recipe.load import parse_changes

            # For example, `--limit 50 --epochs 2` becomes {"data.limit": 50, "training.epochs": 2}.
            settings = {_KEYS.get(name, f"training.{name}"): values.pop(name) for name in options}
            command(changes=merge_changes(settings, parse_changes(changes or [])), **values)

        return _with_options(run, command, "changes", {**options, "changes": set_option}, {})

    return decorate


def _with_options(
    run: _Command, command: _Command, placeholder: str, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> _Command:
    """Return a function with the parameters of a command, but with options instead of one parameter.

    Args:
        run: Function that takes the options.
        command: Command whose parameters are copied.
        placeholder: Name of the parameter that the options replace.
        options: Name -> annotation.
        defaults: Name -> default; other options default to None.
    """
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        # Keyword-only parameters may have defaults in any order, so required options can follow optional ones.
        if parameter.name != placeholder:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        for name, annotation in options.items():
            default = defaults.get(name)
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # Otherwise, typer reads the annotations of the command.
    return run


def merge_changes(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the options that were given, updated by the changes."""
    # None and an empty list mean that an option was not given; False and 0 are values.
    return {key: value for key, value in settings.items() if value not in (None, [])} | dict(changes)


def check_unused_options(options: Mapping[str, object], reason: str, remedy: str) -> None:
    """Reject options that have no effect; `reason` follows the name of the option in the message.

    Raises:
        UsageError: If an option has a value.
    """
    for name, value in options.items():
        if not (value is None or value is False or value == []):
            raise UsageError(f"{name} {reason}", remedy)


def find_checkpoint(name: str, model: str | None) -> tuple[str, str]:
    """Return the recipe and the checkpoint of a run folder, or of a recipe with --model.

    Raises:
        UsageError: If a run folder is named with --model, or a recipe without it.
    """
    from bertkit.recipe import find_recipe
    from bertkit.recipe.load import recipe_names
    from bertkit.recipe.sections import expand_path
    from bertkit.storage.hub.models import get_recipe_file, has_recipe

    # A shipped recipe comes first, so that a folder named `cola` does not change the meaning of a command.
    if name in recipe_names() or not has_recipe(name):
        if model is None:
            if "/" in name and not expand_path(name).exists():
                remedy = similar_path(expand_path(name)) or "`bertkit runs list` shows the runs below runs/"
                raise UsageError(f"no such run: {name}", remedy)
            if (run := Path("runs", name)).is_dir() and name not in recipe_names():
                raise UsageError(f"no such folder: {name}", f"did you mean {run}?")
            find_recipe(name, "finetune")
            raise UsageError(f"{name} is a recipe, which has no checkpoint", "give a run, or add --model RUN")
        return name, model
    recipe = get_recipe_file(name, f"name the recipe, and the folder with it: RECIPE --model {shlex.quote(name)}")
    if model is not None:
        message = f"--model {model} cannot replace the model of the run {name}"
        raise UsageError(message, f"leave --model out, or name the recipe instead: {shlex.quote(recipe)}")
    return recipe, name


_LABEL_TASKS = ("text_classification", "few_shot", "zero_shot")


def get_zero_shot_task(name: str) -> str:
    """Return the task of zero-shot classification, after a check that the recipe classifies texts.

    Raises:
        UsageError: If the recipe does not classify texts.
    """
    from bertkit.recipe.load import read_values

    task = read_values(name).get("task")
    # If the recipe names no task, the error is raised when the recipe is loaded.
    if task is not None and task not in _LABEL_TASKS:
        message = f"--zero-shot requires a recipe that classifies texts, but the task of {name} is {task}"
        raise UsageError(message, "name another recipe, e.g. sst2")
    return "zero_shot"


def parse_row(text: str | None, assignments: list[str] | None) -> dict[str, Any] | None:
    """Return the row that --text and --row define, or None without them; a repeated column becomes a list."""
    row: dict[str, Any] = {} if text is None else {"text": text}
    for assignment in assignments or []:
        column, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--row {assignment} is not COLUMN=VALUE", "write e.g. --row text='Good.'")
        # `--row choices=a --row choices=b` becomes {"choices": ["a", "b"]}, and a single value stays a text.
        earlier = row.get(column, [])
        row[column] = [*([earlier] if isinstance(earlier, str) else earlier), value] if column in row else value
    return row or None


FROM_MODEL = "from the model"

ColumnOption = Annotated[str, option("Column with the texts.", "NAME")]
EncoderOption = Annotated[
    str, option("Encoder: Hub name, directory (of sentence-transformers, too), run folder or `demo`.", "MODEL")
]
PoolingOption = Annotated[
    str | None,
    option(
        "Pooling of the token vectors to one vector: mean, cls, max, lasttoken, ...",
        "MODE",
        f"{FROM_MODEL}, else mean",
    ),
]
# Matryoshka training (Kusupati et al. 2022) makes the first dimensions of a vector useful on their own.
DimensionOption = Annotated[
    int | None,
    option(
        "Number of dimensions to keep, for models trained for truncation (Matryoshka).",
        "N",
        f"{FROM_MODEL}, else all",
        min=1,
    ),
]
TextLengthOption = Annotated[int | None, option("Maximum tokens per text.", "N", FROM_MODEL, min=4)]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16"],
    option("Data type for vectors: fp32, bf16, or auto (the faster one in a short trial).", "PRECISION"),
]
PromptOption = Annotated[
    str | None, option("Name of the model's prompt to put before each text, e.g. query.", "NAME", FROM_MODEL)
]
PromptTextOption = Annotated[
    str | None,
    option("Text to put before each text instead of a prompt, e.g. 'query: '.", "TEXT", names=("--prompt-text",)),
]
LayersOption = Annotated[str, option("Layers to read: last, mean_last_K, sum_last_K, concat_last_K, ...", "LAYERS")]
NormalizeOption = Annotated[
    bool | None, option("Scale vectors to length 1.", default=FROM_MODEL, names=("--normalize/--no-normalize",))
]
_FILE_KEYS = ["data.limit", *_FORMAT_KEYS]
FILE_HELP = "Set how FILE is read, e.g. data.delimiter=';'; repeatable."
DataSettingsOption = Annotated[list[str] | None, set_option(*_FILE_KEYS, help=FILE_HELP)]
TextSettingsOption = Annotated[
    list[str] | None,
    set_option(*_FILE_KEYS, *(f"data.{key}*" for key in ("columns", "ignore_columns", "empty_text")), help=FILE_HELP),
]


def read_data_options(column: str, changes: list[str] | None) -> DataConfig:
    """Return the settings for reading a file: the column of its texts, and the keys from `--set`.

    Raises:
        RecipeError: If a key is unknown.
    """
    from bertkit.recipe.load import load_recipe, parse_changes

    settings = parse_changes(changes or [])
    texts = {"data.columns.text": column} if column != "text" else {}
    # Any recipe with a text column works, because only its section `data` is used.
    return load_recipe("classify", {**texts, **settings}).data


EMBEDDER_OPTIONS: dict[str, Any] = {
    "model": EncoderOption,
    "prompt": PromptOption,
    "prefix": PromptTextOption,
    "pooling": PoolingOption,
    "layers": LayersOption,
    "normalize": NormalizeOption,
    "dimension": DimensionOption,
    "max_length": TextLengthOption,
    "precision": PrecisionOption,
}
# Other options default to None, so that the model's folder decides.
_EMBEDDER_DEFAULTS = {"model": Parameter.empty, "layers": "last", "precision": "auto"}


def embedder_options(command: _Command) -> _Command:
    """Replace the parameter `embedder` of a command by options of the model and of its vectors."""

    @wraps(command)
    def run(**values: Any) -> None:
        from bertkit.vectors.embedder import Embedder

        command(embedder=Embedder(**{name: values.pop(name) for name in EMBEDDER_OPTIONS}), **values)

    return _with_options(run, command, "embedder", EMBEDDER_OPTIONS, _EMBEDDER_DEFAULTS)
