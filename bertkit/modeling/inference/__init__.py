"""Forward passes of BERT's kin in plain torch, for models that are not trained.

Importing transformers' modeling code takes longer than importing torch: it brings in torch's compiler, tensors that
several devices share, and losses of object detectors. To predict a text or to compute its vector, a forward pass is
enough. What is not known here is left to transformers.
"""

from bertkit.modeling.inference.answers import load_for_inference as load_for_inference
