"""Forward passes of the BERT family in plain torch, for inference.

Predicting a text, or computing its vector, needs only a forward pass. Importing transformers' modeling code takes
longer than importing torch: it imports torch's compiler, distributed tensors and losses of object detectors. Model
types and settings that these modules do not know are left to transformers.
"""
