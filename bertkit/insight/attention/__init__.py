"""What the heads of an encoder attend to: in one text, and over the rows of a file."""
