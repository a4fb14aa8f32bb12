"""What `bertkit fill-mask` prints; its answers are in tests/workflows."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.fill_mask import print_answers


def mask(number: int, *words: str) -> dict:
    answers = [{"word": word, "probability": 0.5 / (n + 1), "text": f"A {word}."} for n, word in enumerate(words)]
    return {"mask": number, "answers": answers}


def test_answers_are_aligned_and_numbered_where_a_text_has_several_masks(capsys):
    one = {"text": "A [MASK].", "masks": [mask(1, "dog", "house")]}
    two = {"text": "[MASK] [MASK].", "masks": [mask(1, "a"), mask(2, "b")]}
    print_answers([one, two])
    assert capsys.readouterr().out.splitlines() == [
        "A [MASK].",
        "   50.00%  dog    A dog.",
        "   25.00%  house  A house.",
        "[MASK] [MASK].",
        "  1   50.00%  a  A a.",
        "  2   50.00%  b  A b.",
    ]


@pytest.mark.parametrize("options", [["--top", "0"], ["--top", "x"]])
def test_the_number_of_answers_is_checked(run, options):
    ended = run("fill-mask", "a [MASK]", "--model", "demo", *options)
    assert ended.code == 2
    assert "--top" in ended.last
