"""Where jobs run: this process, local processes or a Ray cluster."""
