"""Losses of sentence-transformers: found in its source, refused for rows that do not fit, and equal in value."""

from __future__ import annotations

import sys

import pytest
import torch

from bertkit.data.rows import Split
from bertkit.errors import DataError, RecipeError, UnavailableError
from bertkit.modeling.sentence import library_losses
from bertkit.modeling.sentence.folder import Normalize, SentenceModules
from bertkit.modeling.sentence.head import load_sentence_head
from bertkit.modeling.sentence.library_losses import check_training, list_library_losses
from bertkit.modeling.sentence.losses import VectorLoss
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from tests.conftest import make_tokenizer

PAIRS = ["AnglELoss", "CoSENTLoss", "CosineSimilarityLoss"]
BINARY = ["ContrastiveLoss", "OnlineContrastiveLoss"]
CLASSES = ["BatchAllTripletLoss", "BatchHardSoftMarginTripletLoss", "BatchHardTripletLoss", "BatchSemiHardTripletLoss"]
# loss -> numbers of negatives
NEGATIVES = {
    "AnglELoss": (1, 2),
    "MultipleNegativesRankingLoss": (0, 1, 2),
    "TripletLoss": (1,),
}
LABELS = torch.tensor([1.0, 0.0, 1.0, 0.0])


def recipe_with(name: str, loss: str):
    recipe = load_recipe(name, {"options.loss": loss})
    load_task(recipe)
    return recipe


@pytest.mark.parametrize(
    ("name", "losses"),
    [("similarity", [*PAIRS, *BINARY]), ("similarity-triples", NEGATIVES), ("few-shot", CLASSES)],
)
def test_a_recipe_takes_the_losses_for_its_rows(name, losses):
    for loss in list_library_losses():
        if loss in losses:
            recipe_with(name, loss)
        else:
            with pytest.raises(RecipeError, match=rf"options.loss is '{loss}' - it takes .*; rows of this task fit "):
                recipe_with(name, loss)
    assert set(losses) < list_library_losses().keys()
    with pytest.raises(RecipeError, match=f"did you mean {next(iter(losses))}"):
        recipe_with(name, next(iter(losses)).replace("Loss", "Los"))
    with pytest.raises(RecipeError, match="did you mean MultipleNegativesRankingLoss"):  # it computes texts itself
        recipe_with("similarity-pairs", "CachedMultipleNegativesRankingLoss")


def make_split(rows):
    return Split("train", "rows.csv", rows, range(2, 2 + len(rows)))


def make_triples(*counts):
    return make_split([{"anchor": "a", "positive": "b", "negative": ["c"] * count} for count in counts])


@pytest.mark.parametrize("loss", NEGATIVES)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_rows_need_the_negatives_that_a_loss_takes(loss, count):
    rows, recipe = make_triples(count, count), recipe_with("similarity-triples", loss)
    if count in NEGATIVES[loss]:
        check_training(rows, recipe)
    else:
        with pytest.raises(DataError, match=rf"{count} negatives .* but {loss} takes .*\(anchor, .*\(rows.csv:2\)"):
            check_training(rows, recipe)


def test_rows_need_equally_many_negatives_and_binary_labels():
    message = r"1 negatives \(2 in the first row\), but MultipleNegativesRankingLoss takes .* \(rows.csv:3\)"
    with pytest.raises(DataError, match=message):
        check_training(make_triples(2, 1), recipe_with("similarity-triples", "MultipleNegativesRankingLoss"))
    check_training(make_triples(2, 1), recipe_with("similarity-triples", "mnrl"))
    pairs = [{"text": "a", "text_pair": "b", "label": label} for label in (0.0, 5.0, 3.5)]
    check_training(make_split(pairs[:2]), recipe_with("similarity", "ContrastiveLoss"))  # labels from 0 to 5
    check_training(make_split(pairs), recipe_with("similarity", "AnglELoss"))
    message = r"label 3.5, but ContrastiveLoss takes .* with 1 if positive, 0 if negative \(rows.csv:4\)"
    with pytest.raises(DataError, match=message):
        check_training(make_split(pairs), recipe_with("similarity", "ContrastiveLoss"))


def test_a_missing_package_is_reported_before_training_and_a_trained_model_is_usable(monkeypatch):
    monkeypatch.setattr(library_losses, "list_library_losses", dict)
    monkeypatch.setitem(sys.modules, "sentence_transformers.sentence_transformer.losses", None)
    recipe = recipe_with("similarity-triples", "TripletLoss")
    check_training(make_triples(1), recipe)
    with pytest.raises(RecipeError, match="did you mean mnrl"):
        recipe_with("similarity-triples", "mnlr")
    with pytest.raises(
        UnavailableError, match=r"TripletLoss needs the package .* - `pip install .*sentence-transformers"
    ):
        VectorLoss("TripletLoss", scale=7.0)


@pytest.mark.slow  # it imports the library
@pytest.mark.parametrize(
    ("name", "texts", "labels"),
    [
        *((name, 2, LABELS) for name in (*PAIRS, *BINARY)),
        *((name, 2 + count, None) for name, counts in NEGATIVES.items() for count in counts),
        *((name, 1, LABELS.long()) for name in CLASSES),
    ],
)
def test_values_and_gradients_are_those_of_the_library(still_model, tmp_path, name, texts, labels):
    """The library reads the texts itself, with the folder that bertkit writes; texts are read in chunks here."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    modules = SentenceModules(transforms=(Normalize(),))
    model = load_sentence_head(still_model, modules, VectorLoss(name), texts_at_once=3).train()
    assert model.compares_rows
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    library = SentenceTransformer(str(tmp_path), device="cpu")
    ids = torch.randint(5, 60, (4, texts, 7), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    columns = [{key: values[:, text] for key, values in batch.items()} for text in range(texts)]
    expected = getattr(losses, name)(library)(columns, labels)
    expected.backward()
    value = model(**batch, labels=labels)["loss"]
    value.backward()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    gradients = {name: one.grad for name, one in library[0].auto_model.named_parameters()}
    for parameter, one in model.base_model.named_parameters():
        torch.testing.assert_close(one.grad, gradients[parameter], rtol=1e-4, atol=1e-6, msg=parameter)
    # Rows that only fill a batch change nothing.
    filled = {key: torch.cat([values, values[:2]]) for key, values in batch.items()}
    filled["labels"] = None if labels is None else torch.cat([labels, labels[:2]])
    is_row = torch.tensor([True] * 4 + [False] * 2)
    torch.testing.assert_close(model(**filled, row_mask=is_row)["loss"], value, rtol=1e-6, atol=1e-6)
