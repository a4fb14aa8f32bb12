"""Work of the commands, with one module or package per verb."""
