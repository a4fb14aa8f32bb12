"""The commands of `bertkit`, found by folder: a module is a command, a package is a group of commands.

A command's module has a function `command`, whose parameters are the options and whose docstring is the help, and
three constants: NAME as it is typed, EXAMPLE, one command line that works, and ORDER, its position in the help. A
group's package has NAME, ORDER, HELP and, if it parses its arguments in a way of its own, the class GROUP. To add a
command, add a file.
"""
