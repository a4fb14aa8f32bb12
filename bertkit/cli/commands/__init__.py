"""The commands of `bertkit`, found by folder: a module is a command, a package is a group of commands.

A command is called as its file. The module has a function `command`, whose parameters are the options and whose
docstring is the help, and the constants EXAMPLE, one command line that works, and ORDER, its position in the help; NAME
too, where something else than the name of the file is typed. A group's package has ORDER, HELP and, if it parses its
arguments in a way of its own, the class GROUP. To add a command, add a file.
"""
