"""What the commands do: a module or a package per verb."""
