"""What computes answers: inputs are encoded one by one, and computed in batches."""

from __future__ import annotations


def test_rows_are_encoded_apart_and_answered_together(service):
    engine = service.models["run"].row_queue.engine
    rows = [{"text": "good"}, {"text": "a very dull film"}]
    encoded = [engine.encode([row])[0] for row in rows]
    assert [one.tokens for one in encoded] == [3, 6]
    assert [answer["prediction"] for answer in engine.answer(encoded)] == ["good", "bad"]
    assert engine.group(rows[0]) == engine.group(rows[1]) != engine.group({"text": "a", "text_pair": "b"})


def test_texts_count_with_their_prompt(service):
    engine = service.models["vectors"].text_queue.engine
    assert [engine.encode([("good film", prompt)])[0].tokens for prompt in (None, "query")] == [4, 5]
