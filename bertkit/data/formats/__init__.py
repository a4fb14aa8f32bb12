"""Readers of file formats; the table `FORMATS` of `bertkit.data.files` has all of them."""
