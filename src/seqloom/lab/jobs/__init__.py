"""Where jobs run: one place a file."""
