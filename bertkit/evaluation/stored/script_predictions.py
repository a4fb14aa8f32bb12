"""Predictions that the example scripts of Hugging Face Transformers write: answers alone, without their rows.

`run_glue.py` and `run_classification.py` write an index and an answer per line below a header, `run_ner.py` the tags of
a sentence per line, and `run_qa.py` a JSON object from the ids of questions to answers, as SQuAD's scorer reads it.
"""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertkit.errors import DataError
from bertkit.storage.files import split_lines
from bertkit.tokens.features import Rows

ENDINGS = (".txt", ".json")
_HEADER = "index\tprediction"


def parse_script_predictions(text: str, file: Path) -> list[dict[str, Any]]:
    """Return a record with ``prediction`` for each answer, and with ``id`` where the file has ids.

    Raises:
        DataError: the text is in none of the forms above.
    """
    if file.suffix == ".json":
        try:
            answers = json.loads(text)
        except (ValueError, RecursionError):
            answers = None
        if not isinstance(answers, dict) or not all(isinstance(answer, str) for answer in answers.values()):
            what = "not a JSON object from the ids of questions to answers"
            raise DataError(what, "name a file of predictions, such as eval_predictions.json", file=file)
        return [{"id": key, "prediction": answer} for key, answer in answers.items()]
    lines = split_lines(text)
    if lines and lines[0] == _HEADER:
        return [_parse_line(line, number, file) for number, line in enumerate(lines[1:])]
    return [{"prediction": line.split()} for line in lines]


def _parse_line(line: str, number: int, file: Path) -> dict[str, Any]:
    index, tab, answer = line.partition("\t")
    if not tab or index != str(number):
        what = f"the line does not begin with the index {number} and a tab"
        raise DataError(what, "name the file as the script has written it", file=file, row=number + 2)
    # of several labels, the script writes the list as Python shows it
    if answer.startswith("["):
        with suppress(ValueError, SyntaxError):  # a label's name may begin so
            return {"prediction": ast.literal_eval(answer)}
    return {"prediction": answer}


def add_rows(answers: Rows, rows: Rows, gold: str, file: Path) -> list[dict[str, Any]]:
    """Return each answer in its row: that of its id, or else the one at its place.

    Args:
        answers: as `parse_script_predictions` returns them.
        rows: of a run, with a gold column.
        gold: the name of that column; where it holds numbers, so do the answers that are returned.
        file: that the answers are from, for errors.

    Raises:
        DataError: another number of rows, an id that is missing, or an answer that is not a number where it must be.
    """
    if any("id" in answer for answer in answers):
        by_id = {answer["id"]: answer for answer in answers}
        missing = next((row for row in rows if str(row.get("id")) not in by_id), None)
        if missing is not None:
            what = f"no answer to the question {missing.get('id')!r}"
            raise DataError(what, "predict the same rows, or those of another --split", file=file)
        answers = [by_id[str(row["id"])] for row in rows]
    if len(answers) != len(rows):
        what = f"{len(answers):,} predictions for {len(rows):,} rows"
        raise DataError(what, "they have no rows of their own, so predict the same ones in their order", file=file)
    records = []
    for number, (answer, row) in enumerate(zip(answers, rows, strict=True), start=1):
        value = answer["prediction"]
        if isinstance(row[gold], (int, float)) and not isinstance(row[gold], bool):
            try:
                value = type(row[gold])(value)
            except ValueError:
                what = f"the prediction {value!r} is not a number"
                raise DataError(what, "compare models of one task", file=file, row=number) from None
        records.append({**row, "prediction": value})
    return records
