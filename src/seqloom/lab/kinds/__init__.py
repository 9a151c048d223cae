"""Kinds of task: everything that differs between them, one file per kind."""
