"""`bertkit rank`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from bertkit.cli.options import (
    AnsweringSetOption,
    DataOption,
    LimitOption,
    MaxLengthOption,
    PageOption,
    RecipeArgument,
    argument,
    load,
    option,
)
from bertkit.cli.output import format_count, print_notes, print_result, print_table, print_text
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.workflows.rank import RankedEncoder, Ranking

ORDER = 11
EXAMPLE = "bertkit rank cola --models answerdotai/ModernBERT-base google-bert/bert-base-uncased"

_UNITS = {
    "text": "texts",
    "pair": "pairs",
    "two texts": "two texts",
    "word": "words",
    "target": "words to tell the senses of",
}
_LAYERS = {"mean": "the mean of layers", "last": "the last layer", "best": "the best layer"}

# what follows the first value of --models; so these may be given one after the other
MoreArgument = Annotated[list[str] | None, argument("More of --models.", "[MODEL]...")]


def command(
    recipe: RecipeArgument,
    more: MoreArgument = None,
    models: Annotated[
        list[str] | None,
        option("Encoders to rank: two or more hub names, directories, runs or `demo`; may be repeated.", "MODEL..."),
    ] = None,
    by: Annotated[
        Literal["logme", "h_score"] | None, option("Score to order by, less that of shuffled labels.", "SCORE", "logme")
    ] = None,
    layers: Annotated[
        str, option("What to score: mean (of all layers), last, best, or the number of one.", "LAYERS")
    ] = "mean",
    rows: Annotated[int, option("Training rows to read at most; of taggers, words.", "N", min=1)] = 2000,
    data: DataOption = None,
    limit: LimitOption = None,
    max_length: MaxLengthOption = None,
    changes: AnsweringSetOption = None,
    output: PageOption = None,
) -> None:
    """Rank encoders for a recipe without fine-tuning any: which one to take, and what it costs.

    Scores of their frozen vectors on training rows, with an interval, beside parameters, speed here, memory, license
    and languages. Vectors are kept on disk, so a second ranking is quick.
    """
    from bertkit.reports.insight.rank import write_ranking
    from bertkit.workflows.rank import RankSettings, rank

    named = [*(models or ()), *(more or ())]
    settings = RankSettings(by, layers, rows)
    loaded = load(recipe, {"data.source": data, "data.limit": limit, "training.max_length": max_length}, changes)
    ranking = rank(loaded, named, settings)
    print_result(ranking, _print_ranking, page=output, write=write_ranking)


def _print_ranking(ranking: Ranking) -> None:
    from bertkit.reports.insight.rank import SCORE_NAMES

    classes = "numbers" if ranking.classes is None else f"{ranking.classes} classes"
    print_text(
        f"{ranking.recipe}, {ranking.split}: {ranking.examples:,} {_UNITS[ranking.unit]}, {classes}; "
        f"{SCORE_NAMES[ranking.by]} of {_LAYERS.get(ranking.layers, f'layer {ranking.layers}')}"
    )
    print_table(
        "scores", [_score_row(encoder, ranking, SCORE_NAMES) for encoder in ranking.encoders], len(ranking.encoders)
    )
    print_table("cost", [_cost_row(encoder) for encoder in ranking.encoders], len(ranking.encoders))
    print_text(f"  speed: {ranking.precision}, {format_count(ranking.threads, 'thread')}, in turns")
    print_notes([*describe_order(ranking), *ranking.notes])
    print_text(f"  took {duration_text(ranking.seconds)}; nothing was trained")


def _score_row(encoder: RankedEncoder, ranking: Ranking, names: dict[str, str]) -> dict[str, Any]:
    score = encoder.scores[ranking.by]
    return {
        "encoder": f"{'* ' if encoder.is_efficient else '  '}{encoder.model}",
        names[ranking.by]: score,
        "95% CI": encoder.interval,
        "shuffled": encoder.shuffled,
        "gain": score - encoder.shuffled,
        **{names[name]: value for name, value in encoder.scores.items() if name != ranking.by},
        "layer": str(encoder.layer) if ranking.layers == "best" else "",
    }


def _cost_row(encoder: RankedEncoder) -> dict[str, Any]:
    from bertkit.reports.insight.rank import size_text

    return {
        "encoder": f"  {encoder.model}",
        "parameters": size_text(encoder.cost.parameters),
        "tokens/s": f"{encoder.cost.tokens_per_second:,.0f}",
        "spread": f"{encoder.cost.spread:.0%}",
        "memory": size_text(encoder.cost.memory_bytes, " MB"),
        "longest input": encoder.cost.max_tokens,
        "languages": encoder.cost.languages,
        "license": encoder.cost.license,
    }


def describe_order(ranking: Ranking) -> list[str]:
    """Say which encoders no other beats in score and speed, and which cannot be told apart."""
    # Scores this close are often within chance, so the order is told with what it does not show.
    efficient = [encoder.model for encoder in ranking.encoders if encoder.is_efficient]
    lines = [f"* no other is both as good and as fast: {', '.join(efficient)}"]
    like_first = [encoder.model for encoder in ranking.encoders[1:] if encoder.is_like_first]
    first = ranking.encoders[0].model
    if like_first:
        lines.append(f"{first} comes first, but cannot be told apart from {', '.join(like_first)}")
    pairs = zip(ranking.encoders[1:], ranking.encoders[2:], strict=False)
    alike = [f"{encoder.model} and {after.model}" for encoder, after in pairs if encoder.is_like_next]
    if alike:
        lines.append(f"neighbors that cannot be told apart either: {'; '.join(alike)}")
    if not like_first and not alike:
        lines.append("each can be told apart from the next (95% intervals of the differences)")
    chance = [encoder.model for encoder in ranking.encoders if encoder.is_chance]
    if chance:
        lines.append(f"no better than with shuffled gold values: {', '.join(chance)}; read more rows")
    return lines
