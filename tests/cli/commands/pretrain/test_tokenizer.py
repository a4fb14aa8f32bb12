"""What `bertkit pretrain tokenizer` prints, and its renamed option; its tokenizers are in tests/workflows."""

from __future__ import annotations

from bertkit.cli.commands.pretrain.tokenizer import print_tokenizer
from bertkit.workflows.tokenizer import TokenizerReport

REPORT = TokenizerReport("tok", "bpe", False, 400, 2000, 16, 240, 1.35, 0.808, 0.0012, 22.1, 0.668, ["too little text"])


def test_what_the_tokenizer_does_to_held_out_text(capsys):
    print_tokenizer(REPORT)
    assert capsys.readouterr().out.splitlines() == [
        "tok: bpe, cased, 400 tokens",
        "  on 16 held-out of 2,000 documents (240 words):",
        "  tokens per word (fertility)    1.350",
        "  single-token words             80.8%",
        "  unknown tokens                0.120%",
        "  tokens per document             22.1",
        "  vocabulary unused there        66.8%",
        "  warning: too little text",
    ]
