"""The commands of `bertkit`, found by file: to add a command, add a file.

A command is called as its file, or by the constant NAME. The file has a function `command`, whose parameters are the
options and whose docstring is the help, and the constants EXAMPLE, a command line that works, and ORDER, its position
in the help. A file of several commands has COMMANDS instead: name -> (function, example). With HELP, they are a group
that is called as the file; its class GROUP, if it has one, parses the arguments of the group.
"""
