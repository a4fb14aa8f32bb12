"""A folder of vectors with their rows, in which the nearest to a vector are found."""

from bertkit.vectors.index.folder import Index

__all__ = ["Index"]
