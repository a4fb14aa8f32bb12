"""Forward passes of the BERT family in plain torch, for models that are not trained.

Importing transformers' modeling code takes longer than importing torch: it brings in torch's compiler, distributed
tensors and losses of object detectors. Predicting a text, or computing its vector, needs only a forward pass. Types and
settings that are not known here are left to transformers.
"""
