"""The commands of `bertkit`, found by file: to add a command, add a file.

A command has the name of its file, or the constant NAME. The file has a function `command`, whose parameters are the
options and whose docstring is the help, and the constants EXAMPLE, a command line that works, and ORDER, its position
in the help. A file with several commands has COMMANDS instead: name -> (function, example). With HELP, they become a
group with the name of the file; the class GROUP, if it exists, parses the group's arguments.
"""
