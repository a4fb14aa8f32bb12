"""Documents, tokenized, packed and masked: the text that a model is pretrained on."""
