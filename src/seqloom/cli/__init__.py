"""The command line: the entry point in main.py, larger commands in commands/."""
