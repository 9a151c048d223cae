"""The command line: one command per file in commands/, its entry point in main.py."""
